udf("lua_title(text VARCHAR) -> VARCHAR", function(text)
  return (text:gsub("(%a)(%w*)", function(first, rest) return first:upper() .. rest end))
end)
