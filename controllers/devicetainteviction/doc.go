// Package devicetainteviction evicts pods from devices with a NoExecute taint, which a driver sets
// in a ResourceSlice or an administrator by a DeviceTaintRule.
//
// A pod goes when a device of a claim that it uses has a taint which the claim does not tolerate,
// or whose toleration has run out. The rule's condition EvictionInProgress says how many pods are
// to go, or, for the effect None, how many would.
package devicetainteviction
