// Package dynamicresources has the scheduler's plugin DynamicResources: it allocates the devices
// that a pod's ResourceClaims ask for, also those of extended resources that a DeviceClass stands
// for.
//
// Package scheduler/devices has the state of claims and devices. The plugin reserves there, with
// the library's allocator, before it writes.
package dynamicresources
