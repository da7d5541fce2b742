// Package member is one server process of a test group: it serves its driver, package store, by a
// socket that it inherits, and runs the driver's calls inside the process of the raftstore server,
// as the API server does.
//
// The driver's calls are the exported methods of Member, called by net/rpc with the types of
// protocol.go. Errors keep their kind on the way: errors.Is and errors.As find the same in the
// driver as in the member.
package member
