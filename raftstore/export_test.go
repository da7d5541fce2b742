package raftstore

import "github.com/barque/barque/raftstore/mvcc"

// State returns the state of the server, for tests that spoil it.
func (s *Server) State() *mvcc.Store { return s.state }

// RestoreInChunksOf has the restores that this store makes go in log entries of so many bytes. It
// is for tests that need many entries, and not many bytes: those are what such a test would spend
// its time on.
func (s *Store) RestoreInChunksOf(bytes int) { s.chunk = bytes }
