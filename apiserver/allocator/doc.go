// Package allocator has the ranges from which Services get their addresses and node ports, and
// says which value of a range to try next. It keeps nothing: what is taken is in the datastore,
// and its readers say so.
//
// Each range has a low band that is used last, for people who ask for a certain value (KEP-3070 for
// addresses, KEP-3668 for node ports).
package allocator
