// Package member is one server process of a test group: it serves its driver, package store, by a
// socket that it inherits, and runs what the driver asks for inside the process of the raftstore
// server, as the API server does.
//
// What the driver can ask for are the exported methods of Member, called by net/rpc with the types
// of protocol.go. Errors keep their kind on the way: errors.Is and errors.As find in the driver
// what they would find in the member.
package member
