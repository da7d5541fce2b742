// Package operators has the commands of operators, which ask a cluster or change it from outside.
package operators

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/terminal"
)

// ClusterCommand is `barque cluster`, with a command that joins this machine.
func ClusterCommand(join *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Show the cluster and change its members"}
	cmd.AddCommand(clusterStatusCommand(), clusterMembersCommand(), clusterDoctorCommand(), join,
		clusterLeaveCommand(), clusterRemoveCommand(),
		clusterPromoteCommand(), clusterDemoteCommand(), clusterTransferCommand(), clusterRecoverCommand(),
		clusterKeysCommand())
	return cmd
}

func clusterStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the leader, lagging and failing members, warnings and their remedies",
		Long: `Show the leader with the time and the reason of its election, lagging members, the
latencies of disks and network, the servers' views of each other, the last backup, and
warnings with their remedies.

It works without a quorum and with dead servers: the command asks every server directly
and lists the unreachable ones.

The exit code is the health of the cluster, in every output format:

  code  .health    meaning
  0     healthy    nothing needs attention
  6     degraded   it serves, and something needs attention: see the warnings
  7     noQuorum   it has no leader: writes fail
  8     noAnswer   no server answers

Other codes are 1 (it could not ask, as without permission), 2 (wrong arguments) and
130 (Ctrl-C). With --watch, Ctrl-C ends it with 0, whatever the health.`,
		Example: `  barque cluster status
  barque cluster status --watch
  barque cluster status --server 10.0.0.2 --server 10.0.0.3     # these, not the kubeconfig's
  barque cluster status -o json | jq .health`,
		Args: command.NoArgs,
	}
	format, a := command.OutputFlag(cmd), command.AddAskerFlags(cmd)
	watch := cmd.Flags().BoolP("watch", "w", false,
		"repeat until Ctrl-C: redraw on a terminal, append a line otherwise")
	every := cmd.Flags().Duration("interval", 2*time.Second, "interval of --watch")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := errors.Join(command.CheckFormat(c, *format), a.Check(c)); err != nil {
			return err
		}
		if *every < 100*time.Millisecond {
			return command.Usage(c, fmt.Errorf("--interval %s: want 100ms at least", *every))
		}
		if *watch {
			return watchStatus(c, a, *format, *every)
		}
		h, err := a.Ask(c.Context())
		if ask.IsNoAnswer(err) && *format != "" { // for programs that read the output and not the exit code
			return errors.Join(command.Print(c, *format, h.Status(), nil), err)
		}
		if err != nil {
			return err
		}
		s := h.Status()
		err = command.PrintOn(c, *format, s,
			func(w io.Writer, on terminal.Screen) error { return clusterstatus.WriteStatus(w, on, s) })
		if err != nil {
			return err
		}
		return s.Health.Err()
	}
	return cmd
}

func clusterMembersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "members",
		Short:   "List all nodes from gossip and the store",
		Example: "  barque cluster members\n  barque cluster members -o json | jq '.[] | select(.role == \"server\") | .store.revision'",
		Args:    command.NoArgs,
	}
	format, a := command.OutputFlag(cmd), command.AddAskerFlags(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := errors.Join(command.CheckFormat(c, *format), a.Check(c)); err != nil {
			return err
		}
		h, err := a.Ask(c.Context())
		if err != nil {
			return err
		}
		s := h.Status()
		return command.PrintOn(c, *format, s.Members, func(w io.Writer, on terminal.Screen) error {
			if err := clusterstatus.WriteMembers(w, on, s); err != nil || len(s.Warnings) == 0 {
				return err
			}
			_, err := fmt.Fprintf(w, "\n%s attention; see `barque cluster status` for remedies\n",
				terminal.Plural(len(s.Warnings), "thing needs", "things need"))
			return err
		})
	}
	return cmd
}

// watchStatus shows the status repeatedly until the context ends. A failed request is shown and
// does not end it.
func watchStatus(c *cobra.Command, a *command.Asker, format string, every time.Duration) error {
	if _, err := a.Config(); err != nil {
		return err
	}
	out, on := c.OutOrStdout(), terminal.Of(c.OutOrStdout())
	redraw := on.IsTerminal() && format == ""
	if redraw {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")       // another screen, without a cursor
		defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l") // restores the former screen
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		began := time.Now()
		h, err := a.Ask(c.Context())
		if c.Context().Err() != nil {
			return nil
		}
		if redraw {
			err = drawStatus(out, h, err, began, every)
		} else {
			err = appendStatus(out, format, h, err, began)
		}
		if err != nil {
			return err
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// drawStatus replaces the screen by the status, cut to the screen's height.
func drawStatus(out io.Writer, h *ask.Heard, failed error, at time.Time, every time.Duration) error {
	on := terminal.Of(out) // its size may have changed
	var text strings.Builder
	fmt.Fprintf(&text, "%s, every %s; Ctrl-C ends it\n\n", at.Format(time.TimeOnly), every)
	if failed != nil {
		fmt.Fprintln(&text, on.Paint(on.Wrap(failed.Error(), 0), terminal.Bad))
	} else if err := clusterstatus.WriteStatus(&text, on, h.Status()); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	if on.Height > 1 && len(lines) > on.Height-1 {
		lines = append(lines[:on.Height-2], on.Paint("(the rest does not fit)", terminal.Faint))
	}
	_, err := fmt.Fprint(out, "\x1b[H"+strings.Join(lines, "\x1b[K\n")+"\x1b[K\n\x1b[J")
	return err
}

// appendStatus writes one line: the short status, or JSON. YAML documents are separated by "---".
func appendStatus(out io.Writer, format string, h *ask.Heard, failed error, at time.Time) error {
	if format != "" {
		var value any
		if failed != nil {
			value = map[string]any{"time": at.UTC(), "error": failed.Error()}
		} else {
			value = h.Status()
		}
		if format == "json" {
			return json.NewEncoder(out).Encode(value)
		}
		if _, err := fmt.Fprintln(out, "---"); err != nil {
			return err
		}
		return command.WriteYAML(out, value)
	}
	line := at.UTC().Format(time.RFC3339) + " "
	if failed != nil {
		line += "no answer: " + strings.Join(strings.Fields(failed.Error()), " ")
	} else {
		line += h.Status().Line()
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// FetchStatus asks the servers that a kubeconfig leads to.
func FetchStatus(ctx context.Context, kubeconfig string) (*clusterstatus.ClusterStatus, error) {
	h, err := (&command.Asker{Kubeconfig: kubeconfig, DataDir: os.DevNull, Timeout: 10 * time.Second}).Ask(ctx)
	if err != nil {
		return nil, err
	}
	return h.Status(), nil
}

// completionPatience bounds how long a user waits for the names of servers.
const completionPatience = 2 * time.Second

// completeServers proposes the names of the servers, for the first argument.
func completeServers(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	kubeconfig := ""
	if f := c.Flags().Lookup("kubeconfig"); f != nil {
		kubeconfig = f.Value.String()
	}
	h, err := (&command.Asker{Kubeconfig: kubeconfig, DataDir: os.DevNull, Timeout: completionPatience}).Ask(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return h.Status().ServerNames(), cobra.ShellCompDirectiveNoFileComp
}
