-- Ids are whole numbers. Refuse any other value that a client may have written: it would be stored as an id.
-- in: nothing
if #META.next > 14 or string.find(META.next, '%D') then error('the next id is ' .. META.next) end
