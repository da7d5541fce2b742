// Package skew is the policy on the versions of nodes in one cluster, by their lines of releases
// (v0.1, v0.2, …):
//
//   - Servers are at most one line apart.
//   - An agent is of the line of the servers, or of the one before. It is of no later line than any
//     server.
//   - A data directory is used by the line that used it last, or by the next one or the one before.
//     An agent's may skip lines upwards: its state is that of the servers.
//
// A build between releases is of the line of its source. A build from before the first release,
// which reports a commit or nothing, is of the line v0.0. docs/upgrading.md is the page for
// operators. Each package that enforces the policy asks here.
package skew

import (
	"fmt"

	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/pki"
)

// most is by how many lines servers may be apart, and agents be behind.
const most = 1

// Server is a server of a cluster, and its version as it reports it.
type Server struct{ Name, Version string }

// Error is returned for a version that does not fit.
type Error struct {
	// Subject is the node, or the data directory, and Version its version.
	Subject string
	Version version.Number
	// Other is the part that it does not fit, and OtherVersion the version of that.
	Other        string
	OtherVersion version.Number
	Rule, Mend   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s has version %s, and %s has %s: %s; %s (docs/upgrading.md)", e.Subject, e.Version, e.Other,
		e.OtherVersion, e.Rule, e.Mend)
}

// Join returns an *Error if a machine of the role and version may not join the servers.
func Join(name, role, of string, servers []Server) error {
	own := version.Parse(of)
	for _, s := range servers {
		theirs := version.Parse(s.Version)
		e := &Error{Subject: name, Version: own, Other: "server " + s.Name, OtherVersion: theirs,
			Mend: fmt.Sprintf("install the cluster's version on this machine, %s", theirs)}
		switch apart := own.Minor().Apart(theirs.Minor()); {
		case role == pki.RoleAgent && apart > 0:
			e.Rule = "an agent may not be of a later minor version than a server"
			return e
		case role == pki.RoleAgent && apart < -most:
			e.Rule = "an agent may be one minor version behind the servers"
			return e
		case role != pki.RoleAgent && (apart > most || apart < -most):
			e.Rule = "servers may be one minor version apart"
			return e
		}
	}
	return nil
}

// Start returns an *Error if this build, of the version own, may not use the data directory of a
// node of the role, which another version used last. Before the first release no version was noted.
func Start(dir, role, last, own string) error {
	now, was := version.Parse(own), version.Parse(last)
	e := &Error{Subject: "this program", Version: now, Other: "data directory " + dir, OtherVersion: was}
	switch apart := now.Minor().Apart(was.Minor()); {
	case apart < -most:
		e.Rule, e.Mend = "the way back is one minor version at a time",
			fmt.Sprintf("start the version that used it last, %s, or the one before", was)
		return e
	case apart > most && role == pki.RoleServer:
		e.Rule, e.Mend = "servers are upgraded one minor version at a time",
			fmt.Sprintf("start the next minor version after %s first", was.Minor())
		return e
	}
	return nil
}
