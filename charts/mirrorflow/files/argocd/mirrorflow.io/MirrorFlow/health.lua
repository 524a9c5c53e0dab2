-- Argo CD's health of a MirrorFlow: Healthy means that records advance, not that processes run.
-- Lua 5.1 without its libraries, as Argo CD runs it; docs/gitops.md says where it goes.
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

local function health(status, about)
  local message = about.message
  if message == nil or message == "" then
    message = about.reason
  end
  return {status = status, message = message}
end

local ready = condition("Ready")
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not yet seen this version of the spec."}
end
local stalled = condition("Stalled")
if stalled.status == "True" then
  return health("Degraded", stalled)
end
if ready.reason == "Paused" or ready.reason == "Stopped" then
  return health("Suspended", ready)
end
local reconciling = condition("Reconciling")
if reconciling.reason == "ReconciliationPaused" then
  return health("Suspended", reconciling)
end
if reconciling.status == "True" then
  return health("Progressing", reconciling)
end
local verified = condition("Verified")
if verified.status == "False" then
  return health("Degraded", verified)
end
if ready.status == "True" then
  return health("Healthy", ready)
end
if ready.status == "False" then
  return health("Degraded", ready)
end
return health("Progressing", ready)
