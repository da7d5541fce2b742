package raftstore

import "github.com/barque/barque/raftstore/mvcc"

// State returns the state of the server, for tests that spoil it.
func (s *Server) State() *mvcc.Store { return s.state }
