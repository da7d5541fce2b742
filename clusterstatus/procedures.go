package clusterstatus

import "github.com/barque/barque/pki"

// Procedures are the commands by which an operator gets at a node where it runs, for the mends of
// warnings. They differ with the way in which nodes are run.
type Procedures struct {
	// Here tells that they are run on this machine, not on the node's own.
	Here bool
	// Look shows how a node of the role does, and why it is down. Any is what does so for all of
	// them.
	Look func(name, role string) string
	Any  string
	// Errors shows the errors that a server has logged.
	Errors func(server string) string
	// Start starts servers that are down, and Recover is how to begin when they do not come back.
	Start, Recover string
	// JoinAnew lets a server join as a new one, without what its store has.
	JoinAnew func(server string) string
	// From is a command that is to be run in the node's own network.
	From func(name, command string) string
}

// Services are the procedures for nodes that are services of systemd, each on a machine of its own.
func Services() Procedures {
	look := map[string]string{pki.RoleServer: lookAtServer, pki.RoleAgent: lookAtAgent}
	return Procedures{
		Look: func(_, role string) string { return look[role] }, Any: lookAtServer,
		Errors: func(string) string { return "journalctl -u barque-server -p err" },
		Start:  "start the others", Recover: "barque cluster recover --inspect",
		JoinAnew: func(string) string { return JoinAnew },
		From:     func(_, command string) string { return command },
	}
}
