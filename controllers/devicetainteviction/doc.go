// Package devicetainteviction evicts pods from devices with a NoExecute taint. A driver sets the
// taint in a ResourceSlice, or an administrator by a DeviceTaintRule.
//
// A pod goes when a device of its claim has a taint that the claim does not tolerate, or whose
// toleration has run out. The rule's condition EvictionInProgress counts the pods to evict, or, for
// the effect None, those that NoExecute would evict.
package devicetainteviction
