package bgp

import (
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/edge/bgp/speaker"
)

// Annotation is that of a Node with its sessions, in JSON. The node writes it.
const Annotation = "barque.io/bgp-sessions"

// Session is a session as a node tells of it.
type Session struct {
	Peer        string `json:"peer"` // the BGPPeer
	Address     string `json:"address"`
	Established bool   `json:"established"`
	// Since is when the session was established or lost.
	Since time.Time `json:"since"`
	// Routes are announced. Restart is set if the router keeps them while the process is away.
	Routes  int    `json:"routes"`
	Restart bool   `json:"restart,omitempty"`
	Problem string `json:"problem,omitempty"`
}

const (
	// mostShown bounds the sessions in a Node, and longestProblem the text of each.
	mostShown, longestProblem = 32, 240
)

// sessionOf is what a node tells of a session.
func sessionOf(s speaker.Session) Session {
	problem := s.Problem
	if len(problem) > longestProblem {
		problem = strings.ToValidUTF8(problem[:longestProblem], "") + "…"
	}
	return Session{Peer: s.Peer, Address: s.Address.String(), Established: s.State == speaker.Established,
		Since: s.Since.UTC().Truncate(time.Second), Routes: s.Routes, Restart: s.Restart, Problem: problem}
}

// SessionsOf returns the sessions that a node has told of. Those of a Node that cannot be read are
// none: another version may write them differently.
func SessionsOf(node *corev1.Node) []Session {
	var out []Session
	if json.Unmarshal([]byte(node.Annotations[Annotation]), &out) != nil {
		return nil
	}
	return out
}
