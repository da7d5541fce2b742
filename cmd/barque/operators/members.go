package operators

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/membership/enroll"
)

// The commands that change members. Each command asks a server for the plan and prints it. It asks
// the user before an irreversible change, and waits until the change is done. The servers finish a
// change without the command.

func clusterRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "remove SERVER",
		ValidArgsFunction: completeServers,
		Short:             "Take a server out of the store for good",
		Long: `Remove a server from the store for good, because it is lost or replaced. A leader hands
leadership over first. A living server stops by itself. The command is refused if the
remaining servers that answer would be no quorum. The machine can join again as a new
server, with --wipe or an empty data directory.`,
		Example: "  barque cluster remove s3 --dry-run\n  barque cluster remove s3 --yes",
		Args:    command.ExactArgs("SERVER"),
	}
	m := addMemberFlags(cmd, true)
	cmd.RunE = func(c *cobra.Command, args []string) error { return m.run(c, args[0], adminapi.RemoveServer) }
	return cmd
}

func clusterLeaveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take the server on this machine, or the one at an address, out of the store for good",
		Long: `Remove the server on this machine from the store for good. It hands leadership over,
loses its vote, is removed, and stops by itself. --server selects the server at an
address instead, from any machine. The command names the server and asks before the
change. It is refused if the remaining servers that answer would be no quorum. The pods
stay: drain the node first (barque kubectl drain), and delete it afterwards
(barque kubectl delete node).

To remove a server that does not answer: barque cluster remove SERVER.`,
		Example: "  barque cluster leave --dry-run                    # on the machine\n  barque cluster leave --server 10.0.0.3 --dry-run  # from elsewhere\n  barque cluster leave --yes",
		Args:    command.NoArgs,
	}
	m := addMemberFlags(cmd, true)
	m.called = "leave"
	dataDir := cmd.Flags().String("data-dir", command.DefaultDataDir, "data directory of the server on this machine")
	server := cmd.Flags().String("server", "",
		"address of the server that leaves, HOST[:6443], instead of the one on this machine")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if *server != "" {
			return m.leaveAt(c, *server)
		}
		name, err := enroll.ServerName(*dataDir)
		if err != nil {
			return fmt.Errorf("%w; from elsewhere: barque cluster leave --server ADDRESS", err)
		}
		if m.kubeconfig == "" {
			m.kubeconfig = filepath.Join(*dataDir, "admin.kubeconfig")
		}
		m.subject = fmt.Sprintf("Server %s, of %s, leaves the cluster:", name, *dataDir)
		return m.run(c, name, adminapi.RemoveServer)
	}
	return cmd
}

// leaveAt makes the server at an address leave, after asking it for its name.
func (m *memberFlags) leaveAt(c *cobra.Command, server string) error {
	address, err := remote.ServerURL(server)
	if err != nil {
		return command.Usage(c, fmt.Errorf("--server %q: %w", server, err))
	}
	if c.Flags().Changed("data-dir") {
		return command.Usage(c,
			errors.New("--server and --data-dir both select the leaving server: give one of them"))
	}
	if err := command.CheckFormat(c, m.format); err != nil {
		return err
	}
	config, err := command.ClientConfig(m.kubeconfig)
	if err != nil {
		return err
	}
	config.Host = address
	name, err := remote.LeavingServer(c.Context(), config)
	if err != nil {
		return err
	}
	m.subject = fmt.Sprintf("Server %s, which answers at %s, leaves the cluster:", name, address)
	return m.runWith(c, config, name, adminapi.RemoveServer)
}

func clusterPromoteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "promote SERVER",
		ValidArgsFunction: completeServers,
		Short:             "Give a server a vote in the store",
		Long: `Give a server a vote in the store. Servers get their vote by themselves when they have
caught up. The command is for a demoted server; it also cancels an unfinished removal.
It is refused for a server that is failing, lagging, or partitioned from a voter.`,
		Example: "  barque cluster promote s3",
		Args:    command.ExactArgs("SERVER"),
	}
	m := addMemberFlags(cmd, false)
	cmd.RunE = func(c *cobra.Command, args []string) error { return m.run(c, args[0], adminapi.PromoteServer) }
	return cmd
}

func clusterDemoteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "demote SERVER",
		ValidArgsFunction: completeServers,
		Short:             "Take a server's vote away until it is promoted",
		Long: `Take a server's vote away until it is promoted. It keeps its data and serves as before,
but neither leads nor counts for the quorum. It is refused when the servers that keep
theirs and answer would be no quorum.`,
		Example: "  barque cluster demote s3 --dry-run\n  barque cluster demote s3 --yes",
		Args:    command.ExactArgs("SERVER"),
	}
	m := addMemberFlags(cmd, true)
	cmd.RunE = func(c *cobra.Command, args []string) error { return m.run(c, args[0], adminapi.DemoteServer) }
	return cmd
}

func clusterTransferCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "transfer-leader [SERVER]",
		ValidArgsFunction: completeServers,
		Short:             "Make another server the leader",
		Long: `Make another server the leader: the given one, or the one that lags least. Writes wait
for some milliseconds. The command is refused for a failing or lagging server. It returns
when the new leader leads.`,
		Example: "  barque cluster transfer-leader s2\n  barque cluster transfer-leader          # the server that lags least",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usage(c, fmt.Errorf("want one server at most, got %d", len(args)))
			}
			return nil
		},
	}
	m := addMemberFlags(cmd, false)
	m.called = "transfer-leader"
	cmd.RunE = func(c *cobra.Command, args []string) error {
		return m.run(c, strings.Join(append(args, adminapi.AnyServer)[:1], ""), adminapi.LeadServer)
	}
	return cmd
}

// memberFlags are the flags of a change of members.
type memberFlags struct {
	kubeconfig, format string
	yes, dryRun, asks  bool
	called             string // user's name of the change, if it differs
	subject            string // names the server, if the user has not
}

func addMemberFlags(cmd *cobra.Command, asks bool) *memberFlags {
	m := &memberFlags{asks: asks}
	cmd.Flags().StringVar(&m.kubeconfig, "kubeconfig", "", command.KubeconfigHelp)
	cmd.Flags().StringVarP(&m.format, "output", "o", "", "json or yaml instead of text for people")
	cmd.Flags().BoolVar(&m.dryRun, "dry-run", false, "only show the plan, or the reason of a refusal")
	if asks {
		cmd.Flags().BoolVar(&m.yes, "yes", false, "do not ask")
	} else {
		cmd.Flags().BoolVar(&m.yes, "yes", false, "for scripts: this command never asks, because it takes nothing away")
	}
	return m
}

func (m *memberFlags) run(c *cobra.Command, name string, change adminapi.MemberChange) error {
	if err := command.CheckFormat(c, m.format); err != nil {
		return err
	}
	config, err := command.ClientConfig(m.kubeconfig)
	if err != nil {
		return err
	}
	return m.runWith(c, config, name, change)
}

// runWith is run with a client's configuration.
func (m *memberFlags) runWith(c *cobra.Command, config *rest.Config, name string, change adminapi.MemberChange) error {
	wanted := remote.ServerChange{Server: name, Change: change, Called: m.called}
	if m.dryRun || m.asks {
		plan, err := wanted.Plan(c.Context(), config)
		if err != nil {
			return err
		}
		if plan.Gone {
			return command.Print(c, m.format, plan, func(w io.Writer) error { return remote.WriteMade(w, plan) })
		}
		if m.dryRun {
			return command.Print(c, m.format, plan, func(w io.Writer) error { return m.writePlan(w, plan) })
		}
		if err := m.confirm(c, plan); err != nil {
			return err
		}
	}
	answer, err := wanted.Make(c.Context(), config)
	if err != nil {
		return err
	}
	return command.Print(c, m.format, answer, func(w io.Writer) error { return remote.WriteMade(w, answer) })
}

// confirm prints the plan, and asks the user unless --yes is given.
func (m *memberFlags) confirm(c *cobra.Command, plan *adminapi.MemberAnswer) error {
	out := c.ErrOrStderr() // standard output is the answer's, which may be JSON
	if err := m.writePlan(out, plan); err != nil {
		return err
	}
	if m.yes {
		return nil
	}
	fmt.Fprint(out, "Go on? [y/N] ")
	return command.Confirmed(c)
}

// writePlan names the server, if the user has not, and prints the plan.
func (m *memberFlags) writePlan(w io.Writer, p *adminapi.MemberAnswer) error {
	if m.subject != "" {
		fmt.Fprintln(w, m.subject)
	}
	return remote.WritePlan(w, p)
}
