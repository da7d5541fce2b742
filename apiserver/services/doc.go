// Package services gives Services their addresses and node ports, and takes them back.
//
// An address belongs to a Service from before the Service is written until after it is gone: it is
// reserved first, in the store and so against all servers, and given back when the write fails. A
// crash in between leaves a reservation without a Service, which the repair of the allocator
// finds. Nothing is ever given to two Services.
package services
