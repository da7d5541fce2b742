package fsm

import "slices"

// refused marks, among a session's answers, a request that was refused. No transaction has this
// revision.
const refused = ^uint64(0)

// maxSessions bounds the number of remembered origins; the one that was silent longest is dropped
// first. Each start of a server is one origin, so this far exceeds the origins with requests in
// progress.
//
// Sessions have no age. Time would come with the leader's clock. A leader whose clock is ahead
// would make all replicas forget requests that are about to be repeated.
const maxSessions = 1024

// session remembers the answers to one origin's requests, as long as the origin may still repeat
// them.
type session struct {
	origin  uint64
	done    uint64 // requests below it are answered, and their answers received
	seen    uint64 // log index of the newest request
	answers map[uint64]uint64
}

// forget drops the answers that the origin does not need any more.
func (s *session) forget(done uint64) {
	if done <= s.done {
		return
	}
	if done-s.done > uint64(len(s.answers)) {
		for seq := range s.answers {
			if seq < done {
				delete(s.answers, seq)
			}
		}
	} else {
		for seq := s.done; seq < done; seq++ {
			delete(s.answers, seq)
		}
	}
	s.done = done
}

// sessions are kept in the order in which their origins appeared, which is equal on all replicas.
type sessions struct {
	byOrigin map[uint64]*session
	order    []*session
}

func newSessions() *sessions { return &sessions{byOrigin: make(map[uint64]*session)} }

// get returns the session of an origin that has a request in the entry at the index.
func (s *sessions) get(origin, index uint64) *session {
	if found, ok := s.byOrigin[origin]; ok {
		found.seen = index
		return found
	}
	if len(s.order) == maxSessions {
		s.dropStalest()
	}
	created := &session{origin: origin, seen: index, answers: make(map[uint64]uint64)}
	s.add(created)
	return created
}

func (s *sessions) add(created *session) {
	s.byOrigin[created.origin] = created
	s.order = append(s.order, created)
}

func (s *sessions) dropStalest() {
	stalest := 0
	for i := range s.order {
		if s.order[i].seen < s.order[stalest].seen {
			stalest = i
		}
	}
	delete(s.byOrigin, s.order[stalest].origin)
	s.order = slices.Delete(s.order, stalest, stalest+1)
}
