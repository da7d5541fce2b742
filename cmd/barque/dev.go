package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/operators"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
)

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "A real multi-node cluster on this machine, to try and to break",
		Long: `A real multi-node cluster on this machine: every node is a process in its own network
namespace, with its own address, data directory and containerd.`,
	}
	w := new(which)
	cmd.PersistentFlags().StringVar(&w.dir, "dir", devcluster.DefaultDir, "where the cluster's files are")
	cmd.PersistentFlags().StringVar(&w.name, "name", "barque",
		"name of the cluster; several clusters can run at once, each in its own directory")
	cmd.AddCommand(devUpCommand(w), devDownCommand(w), devStatusCommand(w), devExecCommand(w), devKillCommand(w),
		devStartCommand(w),
		devNodeCommand(w, "stop", "Stop nodes gracefully, one after the other; their pods keep running", "stopped",
			func(_ *cobra.Command, dir, node string) error { return devcluster.Stop(dir, node) }),
		devNodeCommand(w, "pause", "Freeze the processes of nodes (SIGSTOP)", "paused",
			func(_ *cobra.Command, dir, node string) error { return devcluster.Pause(dir, node) }),
		devNodeCommand(w, "resume", "Resume paused nodes", "resumed",
			func(_ *cobra.Command, dir, node string) error { return devcluster.Resume(dir, node) }),
		devPartitionCommand(w), devHealCommand(w))
	return cmd
}

func devStartCommand(w *which) *cobra.Command {
	wipe := false
	cmd := devNodeCommand(w, "start", "Start nodes that were killed or stopped", "started",
		func(c *cobra.Command, dir, node string) error {
			if wipe {
				return devcluster.Rejoin(c.Context(), dir, node)
			}
			err := devcluster.Start(c.Context(), dir, node, ask.Voters,
				func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) })
			if err != nil && (errors.Is(err, devcluster.ErrLeftBehind) || ask.LeftBehind(dir, node)) {
				return fmt.Errorf("%w\nTo join it as a new server, with an empty store: %s; %s",
					err, devcluster.CommandLine(dir, "stop", node),
					devcluster.CommandLine(dir, "start", "--wipe", node))
			}
			return err
		})
	cmd.Flags().BoolVar(&wipe, "wipe", false,
		"drop the store of this server, which was removed from the cluster or superseded by a recovery, and join as a new one by a ready server")
	return cmd
}

// which identifies the dev cluster by the directory of its files. Without files the name is
// required. With files the name must match.
type which struct{ dir, name string }

// directory returns where the cluster's files are.
func (w *which) directory(c *cobra.Command) (string, error) {
	dir, err := filepath.Abs(w.dir)
	if err != nil || !c.Flags().Changed("name") {
		return dir, err
	}
	if p, err := devcluster.Load(dir); err == nil && p.Name != w.name {
		return "",
			command.Usage(c,
				fmt.Errorf(
					"the dev cluster in %s is named %q, not %q: omit --name, or give the directory of the other cluster with --dir", devcluster.FromHere(dir), p.Name, w.name))
	}
	return dir, nil
}

// commandLine is the shell command for another dev command on this cluster. It includes the name if
// no plan has it.
func (w *which) commandLine(c *cobra.Command, args ...string) string {
	dir, err := filepath.Abs(w.dir)
	if err != nil {
		dir = w.dir
	}
	if _, err := devcluster.Load(dir); err != nil && c.Flags().Changed("name") {
		args = append(args, "--name", w.name)
	}
	return devcluster.CommandLine(dir, args...)
}

func devUpCommand(w *which) *cobra.Command {
	var o devcluster.Options
	var families []string
	cmd := &cobra.Command{Use: "up", Short: "Make the cluster, or finish making it", Args: command.NoArgs}
	cmd.Flags().IntVar(&o.Servers, "servers", 3, "how many servers")
	cmd.Flags().IntVar(&o.Agents, "agents", 0, "how many agents")
	cmd.Flags().StringSliceVar(&families, "ip-families", []string{string(devcluster.IPv4)},
		"addresses of nodes, pods and services: ipv4, ipv6, or both with the primary family first (ipv4,ipv6)")
	cmd.Flags().Uint16Var(&o.APIPort, "api-port", 0,
		"port of 127.0.0.1 that leads to the API (default: the first free one from 6443 up)")
	cmd.Flags().StringArrayVar(&o.Args, "node-arg", nil,
		"an argument for every node, such as --node-arg=--log-level=debug; may be repeated")
	cmd.Flags().StringArrayVar(&o.ServerArgs, "server-arg", nil,
		"an argument for every server, such as --server-arg=--certificate-lifetime=1h; may be repeated")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		var err error
		if o.Families, err = devcluster.ParseFamilies(families); err != nil {
			return err
		}
		if o.Dir, err = w.directory(c); err != nil {
			return err
		}
		o.Name = w.name
		out, began := c.OutOrStdout(), time.Now()
		o.Progress = func(format string, args ...any) {
			fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		}
		p, err := devcluster.Up(c.Context(), o)
		switch {
		case errors.Is(err, devcluster.ErrRunning):
			fmt.Fprintf(out, "The cluster %q runs already; nothing was changed.\n\n", p.Name)
			if errors.Is(err, devcluster.ErrOtherArgs) {
				fmt.Fprintf(c.ErrOrStderr(),
					"The arguments given for its nodes do not count: remove it first with `%s`.\n\n",
					w.commandLine(c, "down"))
			}
		case err != nil && c.Context().Err() != nil:
			return &exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("interrupted; all parts made so far remain: `%s` continues, `%s` removes them",
					w.commandLine(c, "up"), w.commandLine(c, "down"))}
		case err != nil:
			return err
		default:
			fmt.Fprintln(out)
		}
		if err := devcluster.GiveToSudoer(p.Kubeconfig(), os.Getenv, os.Chown); err != nil {
			return fmt.Errorf("let the user of sudo read the kubeconfig: %w", err)
		}
		return printWelcome(c, p)
	}
	return cmd
}

// printWelcome shows the status and the next steps to a new user.
func printWelcome(c *cobra.Command, p *devcluster.Plan) error {
	status, err := operators.FetchStatus(c.Context(), p.Kubeconfig())
	if err != nil {
		return fmt.Errorf("the cluster does not answer: %w; `%s` shows its processes", err,
			devcluster.CommandLine(p.Dir, "status"))
	}
	if err := clusterstatus.WriteStatus(c.OutOrStdout(), terminal.Of(c.OutOrStdout()), status); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), `
The kubeconfig is %[1]s; its address leads to a living server. Next:

  export KUBECONFIG=%[1]s
  kubectl get nodes -o wide
  kubectl apply -f examples/hello.yaml
  %[2]s     # kill the leader; the others continue
  %[3]s        # remove everything`, devcluster.FromHere(p.Kubeconfig()),
		devcluster.CommandLine(p.Dir, "kill", status.Leader), devcluster.CommandLine(p.Dir, "down"))
	return err
}

func devDownCommand(w *which) *cobra.Command {
	return &cobra.Command{Use: "down",
		Short: "Remove the cluster and all that it made; by its name, when its files are lost", Args: command.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := w.directory(c)
			if err != nil {
				return err
			}
			err = devcluster.Down(c.Context(), w.name, d, c.Flags().Changed("name"),
				func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) })
			if err != nil && c.Context().Err() != nil {
				return &exitcode.Error{Code: exitcode.Unfinished,
					Err: fmt.Errorf("interrupted; `%s` removes the rest", w.commandLine(c, "down"))}
			}
			return err
		}}
}

func devStatusCommand(w *which) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the state of the nodes' processes", Args: command.NoArgs}
	format := command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		d, err := w.directory(c)
		if err != nil {
			return err
		}
		s, err := devcluster.Inspect(d)
		if err != nil {
			return err
		}
		return command.Print(c, *format, s, func(w io.Writer) error {
			fmt.Fprintf(w, "cluster\t%s\nendpoint\t%s\nkubeconfig\t%s\n", s.Name, s.Endpoint, s.Kubeconfig)
			if !s.Proxy {
				fmt.Fprintf(w, "warning\tthe endpoint's proxy is dead; `%s` and `%s` make a new cluster\n",
					devcluster.CommandLine(d, "down"), devcluster.CommandLine(d, "up"))
			}
			if s.Partitioned {
				fmt.Fprintf(w, "warning\ta partition is in force; `%s` ends it\n", devcluster.CommandLine(d, "heal"))
			}
			fmt.Fprintln(w, "\nNODE\tROLE\tADDRESS\tSTATE\tPID")
			for _, n := range s.Nodes {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", n.Name, n.Role, n.Addr, n.State, n.PID)
			}
			return nil
		})
	}
	return cmd
}

// devNodeCommand is a command that changes nodes one after the other, and reports each in one word.
// It ends at the first failure.
func devNodeCommand(
	w *which, use, short, done string, run func(c *cobra.Command, dir, node string) error,
) *cobra.Command {
	return &cobra.Command{Use: use + " NODE…", Short: short, Args: command.SomeArgs("NODE"),
		RunE: func(c *cobra.Command, nodes []string) error {
			d, err := w.directory(c)
			if err != nil {
				return err
			}
			if err := devcluster.Know(d, nodes); err != nil {
				return err
			}
			for i, node := range nodes {
				err := run(c, d, node)
				rest := ""
				if others := nodes[i+1:]; len(others) > 0 {
					rest = "; not " + done + ": " + strings.Join(others, ", ")
				}
				switch {
				case err != nil && c.Context().Err() != nil:
					return &exitcode.Error{Code: exitcode.Unfinished,
						Err: fmt.Errorf("interrupted; %s may be %s or not%s: `%s` shows the running processes", node,
							done, rest, devcluster.CommandLine(d, "status"))}
				case err != nil:
					return fmt.Errorf("%w%s", err, rest)
				}
				if _, err := fmt.Fprintln(c.OutOrStdout(), node, done); err != nil {
					return err
				}
			}
			return nil
		}}
}

func devKillCommand(w *which) *cobra.Command {
	var machine bool
	cmd := devNodeCommand(w, "kill", "kill -9 the Barque and containerd of nodes", "killed",
		func(c *cobra.Command, dir, node string) error {
			return devcluster.Kill(c.Context(), dir, node, machine)
		})
	cmd.Flags().BoolVar(&machine, "machine", false, "kill their pods as well, as a power loss does")
	return cmd
}

func devPartitionCommand(w *which) *cobra.Command {
	return &cobra.Command{Use: "partition NODE[,NODE…]",
		Short: "Partition nodes from all others; nodes of one call still reach each other", Args: command.ExactArgs("NODES"),
		RunE: func(c *cobra.Command, args []string) error {
			d, err := w.directory(c)
			if err != nil {
				return err
			}
			if err := devcluster.Partition(d, strings.Split(args[0], ",")); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s cut off; `%s` ends it\n", args[0],
				devcluster.CommandLine(d, "heal"))
			return err
		}}
}

func devHealCommand(w *which) *cobra.Command {
	return &cobra.Command{Use: "heal", Short: "End the partition", Args: command.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := w.directory(c)
			if err != nil {
				return err
			}
			if err := devcluster.Heal(d); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "healed")
			return err
		}}
}

func devExecCommand(w *which) *cobra.Command {
	return &cobra.Command{Use: "exec NODE -- COMMAND [ARG…]", Short: "Run a command in a node's network namespace",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Usage(c,
					errors.New("want a node and a command: barque dev exec s1 -- ip route"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			d, err := w.directory(c)
			if err != nil {
				return err
			}
			return devcluster.Exec(c.Context(), d, args[0], args[1:])
		}}
}
