-- Ids are whole numbers: what somebody else has written there is none, and would be stored as one.
if #META.next > 14 or string.find(META.next, '%D') then error('the next id is ' .. META.next) end
