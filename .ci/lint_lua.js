// Runs luacheck on the texts of a JSON file, and prints the findings of each text as JSON.
require("luacheck-browserify");

(async () => {
  const { texts, config } = JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"));
  const found = [];
  for (const text of texts) found.push(await luacheck.check(text, config));
  console.log(JSON.stringify(found));
})();
