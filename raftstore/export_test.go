package raftstore

import "github.com/barque/barque/raftstore/mvcc"

// State returns the state of the server, for tests that spoil it.
func (s *Server) State() *mvcc.Store { return s.state }

// RestoreInChunksOf has this store make its restores in log entries of so many bytes. It is for
// tests that need many entries without the time that many bytes take.
func (s *Store) RestoreInChunksOf(bytes int) { s.chunk = bytes }
