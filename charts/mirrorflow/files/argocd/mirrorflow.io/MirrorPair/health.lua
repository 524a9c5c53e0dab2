-- Argo CD's health of a MirrorPair: Healthy means that applications could be moved now.
local function condition(kind)
  if obj.status ~= nil and obj.status.conditions ~= nil then
    for _, one in ipairs(obj.status.conditions) do
      if one.type == kind then
        return one
      end
    end
  end
  return {status = "Unknown", reason = "", message = ""}
end

local ready = condition("Ready")
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not yet seen this version of the spec."}
end
if ready.reason == "SwitchingOver" or ready.status == "Unknown" then
  return {status = "Progressing", message = ready.message}
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
return {status = "Degraded", message = ready.message}
