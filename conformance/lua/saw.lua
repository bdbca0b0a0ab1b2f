local function saw(x)
  if type(x) == "string" then
    return 'string "' .. x:gsub("[^\32-\126]", function(byte) return ("\\x%02X"):format(byte:byte()) end) .. '"'
  end
  if x == null then return "null" end
  if type(x) ~= "table" then return (math.type(x) or type(x)) .. " " .. tostring(x) end
  local parts = {}
  for at, value in ipairs(x) do parts[at] = saw(value) end
  if #parts > 0 or next(x) == nil then return "[" .. table.concat(parts, ", ") .. "]" end
  for name, value in pairs(x) do parts[#parts + 1] = tostring(name) .. " = " .. saw(value) end
  table.sort(parts)
  return "{" .. table.concat(parts, ", ") .. "}"
end
