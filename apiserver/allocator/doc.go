// Package allocator has the ranges of Services' addresses and node ports, and selects the next
// value of a range to try. It keeps nothing: the taken values are in the datastore, and its readers
// report them.
//
// Each range has a low band that is used last, for users that request a certain value (KEP-3070 for
// addresses, KEP-3668 for node ports).
package allocator
