package clusterstatus

import "github.com/barque/barque/pki"

// Procedures are an operator's commands for nodes, for the remedies of warnings. They depend on how
// nodes are run.
type Procedures struct {
	// Here is set where they are run on this machine, not on the node's own.
	Here bool
	// Look shows the state of a node of the role, and why it is down. Any does so for all nodes.
	Look func(name, role string) string
	Any  string
	// Errors shows the errors that a server has logged.
	Errors func(server string) string
	// Logged shows the lines of a server's log with a text.
	Logged func(server, text string) string
	// Restart restarts a server.
	Restart func(server string) string
	// Start starts servers that are down, and Recover is how to begin when they do not come back.
	Start, Recover string
	// Again starts an agent that was stopped.
	Again func(agent string) string
	// JoinAnew joins a server as a new one, without the data in its store.
	JoinAnew func(server string) string
	// From is a command that is to be run in the node's own network.
	From func(name, command string) string
}

// Services returns the procedures for nodes that are systemd services on their own machines.
func Services() Procedures {
	look := map[string]string{pki.RoleServer: lookAtServer, pki.RoleAgent: lookAtAgent}
	return Procedures{
		Look: func(_, role string) string { return look[role] }, Any: lookAtServer,
		Errors:  func(string) string { return "journalctl -u barque-server -p err" },
		Logged:  func(_, text string) string { return "journalctl -u barque-server -g " + text },
		Restart: func(string) string { return "systemctl restart barque-server" },
		Start:   "start the others", Recover: "barque cluster recover --inspect",
		Again:    func(string) string { return "systemctl start barque-agent" },
		JoinAnew: func(string) string { return JoinAnew },
		From:     func(_, command string) string { return command },
	}
}
