package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/preflight"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [https://SERVER:6443|ADDRESS…]",
		Short: "Check this machine, and its paths to other machines, before Barque is started",
		Long: `Check whether this machine has the kernel features, tools and ports that Barque needs,
before anything is started.

For each machine in the arguments it also checks whether packets arrive there: at the
required ports, and in the largest size that the link sends. No listener is needed there.
Name a server by its URL, as for joining, and any machine by its address.

With --profile cis it judges a running cluster by the CIS Kubernetes Benchmark instead:
run it on a server, or with the kubeconfig of an administrator where the nodes are
reached. On an agent's machine without a kubeconfig it judges the files of the node.
The exit code is 1 if a row fails or could not be judged. docs/cis.md has the rows.`,
		Example: `  barque check
  barque check --profile cis
  barque check https://10.0.0.1:6443 10.0.0.2
  barque check --role agent https://10.0.0.1:6443`,
	}
	w := addWayFlags(cmd)
	format := command.OutputFlag(cmd)
	dataDir := cmd.Flags().String("data-dir", command.DefaultDataDir, "where the node's data would be kept")
	rootDir := cmd.Flags().String("kubelet-root-dir", rootdir.Default, "where the volumes of pods would be")
	benchmark := addBenchmarkFlags(cmd, dataDir)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if c.Flags().Changed("profile") {
			return benchmark.run(c, args, *format)
		}
		machines, err := w.parse(c, args)
		if err != nil {
			return err
		}
		if len(machines) > 0 {
			fmt.Fprintf(c.ErrOrStderr(), "asking %s, for half a minute at most\n",
				terminal.Plural(len(machines), "machine", "machines"))
		}
		findings := append(preflight.Check(*dataDir, *rootDir), w.needs.Examine(c.Context(), machines)...)
		missing := 0
		for _, f := range findings {
			if !f.OK {
				missing++
			}
		}
		err = command.Print(c, *format, findings, func(w io.Writer) error { return writeFindings(w, findings) })
		if err == nil && missing > 0 {
			err = errors.New(terminal.Plural(missing, "thing is", "things are") + " missing")
		}
		return err
	}
	return cmd
}

// wayFlags describe the required paths to other machines.
type wayFlags struct {
	role  string
	needs path.Needs
}

func addWayFlags(c *cobra.Command) *wayFlags {
	w, flags := new(wayFlags), c.Flags()
	flags.StringVar(&w.role, "role", roleServer,
		"role of this machine, server or agent: each needs different ports of other machines")
	flags.Uint16Var(&w.needs.Peer, "peer-port", defaultPeerPort, "port of the store at the other machines")
	flags.Uint16Var(&w.needs.Gossip, "gossip-port", enroll.GossipPort, "port of gossip at the other machines")
	flags.Uint16Var(&w.needs.Kubelet, "kubelet-port", defaultKubeletPort, "port of the kubelet at the other machines")
	flags.Uint16Var(&w.needs.VXLAN, "vxlan-port", overlay.DefaultPort, "UDP port of VXLAN at the other machines")
	flags.Uint16Var(&w.needs.WireGuard, "wireguard-port", wireguard.DefaultPort,
		"UDP port of WireGuard at the other machines")
	return w
}

// parse reads the role and the machines that the user has named.
func (w *wayFlags) parse(c *cobra.Command, args []string) ([]path.Target, error) {
	if w.role != roleServer && w.role != roleAgent {
		return nil, command.Usage(c, fmt.Errorf("--role %q: want server or agent", w.role))
	}
	w.needs.Server = w.role == roleServer
	var machines []path.Target
	for _, arg := range args {
		m, err := path.ParseTarget(arg)
		if err != nil {
			return nil, command.Usage(c, err)
		}
		machines = append(machines, m)
	}
	return machines, nil
}

func writeFindings(w io.Writer, findings []check.Finding) error {
	for _, f := range findings {
		mark := "ok"
		switch {
		case !f.OK:
			mark = "MISSING"
		case f.Doubt:
			mark = "unclear"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", mark, f.Name, f.Detail)
		if f.Remedy != "" && (!f.OK || f.Doubt) {
			fmt.Fprintf(w, "\t\t→ %s\n", f.Remedy)
		}
	}
	return nil
}
