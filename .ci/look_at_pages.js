// Opens all pages of a folder in a browser, at the widths of a telephone, a laptop and a large screen, and prints the
// number of pages and the elements that are too wide as JSON: {pages, found: [[width, page, misfit]]}.
const { readFileSync, readdirSync } = require("fs");
const { join } = require("path");
const { pathToFileURL } = require("url");
const puppeteer = require("puppeteer-core");
const chromium = require("@sparticuz/chromium");

const WIDTHS = [390, 1300, 1920];
const folder = process.argv[2];

// Runs in the page. Code may scroll in its box, and on a telephone a wide table may.
function misfits(telephone) {
  const found = [];
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) found.push(`the page, by ${page.scrollWidth - page.clientWidth} pixels`);
  for (const element of document.querySelectorAll("article pre, article table, article svg, article img")) {
    const box = element.parentElement;
    const scrolls = getComputedStyle(element.tagName === "PRE" ? element : box).overflowX === "auto";
    if (scrolls && (element.tagName === "PRE" || (element.tagName === "TABLE" && telephone))) continue;
    const over = Math.max(element.scrollWidth - element.clientWidth, element.clientWidth - box.clientWidth);
    if (over > 1) found.push(`${element.tagName.toLowerCase()}, by ${over} pixels: ${element.textContent.trim().split(/\s+/).slice(0, 8).join(" ")}`);
  }
  return found;
}

(async () => {
  const browser = await puppeteer.launch({
    executablePath: await chromium.executablePath(),
    args: [...chromium.args, "--allow-file-access-from-files"],
    headless: "shell",
  });
  const page = await browser.newPage();
  const files = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".html"));
  // Old addresses only redirect to another page.
  const names = files.filter((name) => !readFileSync(join(folder, name), "utf8").includes('http-equiv="refresh"'));
  const found = [];
  for (const name of names.sort()) {
    await page.goto(pathToFileURL(join(folder, name)).href);
    for (const width of WIDTHS) {
      await page.setViewport({ width, height: 900 });
      for (const misfit of await page.evaluate(misfits, width < 500)) found.push([width, name, misfit]);
    }
  }
  await browser.close();
  console.log(JSON.stringify({ pages: names.length, found }));
})();
