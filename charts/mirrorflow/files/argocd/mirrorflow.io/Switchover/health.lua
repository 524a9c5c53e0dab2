-- Argo CD's health of a Switchover: Healthy means that it has ended as it was asked for.
local succeeded = {status = "Unknown", message = "The operator has not yet seen it."}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, one in ipairs(obj.status.conditions) do
    if one.type == "Succeeded" then
      succeeded = one
    end
  end
end
if succeeded.status == "True" then
  return {status = "Healthy", message = succeeded.message}
end
if succeeded.status == "False" then
  return {status = "Degraded", message = succeeded.message}
end
return {status = "Progressing", message = succeeded.message}
