package raftfix

import "github.com/hashicorp/raft"

// filtered is Raft's transport behind the filter.
type filtered struct {
	Transport
	filter *Filter
}

// Transport returns the transport whose messages pass through the filter.
func (f *Filter) Transport(inner Transport) Transport { return &filtered{inner, f} }

// Consumer implements raft.Transport.
func (t *filtered) Consumer() <-chan raft.RPC { return t.filter.Consumer() }
