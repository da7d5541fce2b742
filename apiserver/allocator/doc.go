// Package allocator reserves the addresses and node ports of Services, so that no two Services on
// any two servers ever hold the same one.
//
// A reservation is a key of its own in the datastore, created only where nothing stands, with the
// Service that holds it as its value. There is no bitmap that all servers write, and so nothing to
// fight over: two servers conflict only when they choose the same value at the same moment.
//
// What always holds:
//   - a value has one reservation, and so one owner;
//   - a value is released only by its owner, or by Repair when its owner is gone;
//   - the first address of the range belongs to the Service default/kubernetes and nobody else.
//
// A reservation is made before its Service is written, so a crash between the two leaves one
// without a Service; Repair, on the leader, finds and frees it. Which values a Service needs is
// not decided here.
package allocator
