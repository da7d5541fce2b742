package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/kubelet/rootdir"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [https://SERVER:6443|ADDRESS…]",
		Short: "Tell whether this machine has what Barque needs, and reaches other machines, before anything starts",
		Long: `Tell whether this machine has what Barque needs, before anything starts.

Of each machine that is named it tells, too, whether packets arrive there: at the ports that
this machine will need, and in the largest size that its link sends. Nothing has to run there.
A server is named by its URL, as for joining it, and any machine by its address.`,
		Example: `  barque check
  barque check https://10.0.0.1:6443 10.0.0.2
  barque check --role agent https://10.0.0.1:6443`,
	}
	w := new(ways)
	w.bind(cmd.Flags())
	format := outputFlag(cmd)
	dataDir := cmd.Flags().String("data-dir", defaultDataDir, "where the node's data would be kept")
	rootDir := cmd.Flags().String("kubelet-root-dir", rootdir.Default, "where the volumes of pods would be")
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		machines, err := w.parse(c, args)
		if err != nil {
			return err
		}
		if len(machines) > 0 {
			fmt.Fprintf(c.ErrOrStderr(), "asking %s, for half a minute at most\n", terminal.Plural(len(machines), "machine", "machines"))
		}
		findings := append(node.Check(*dataDir, *rootDir), w.explore(c.Context(), machines)...)
		missing := 0
		for _, f := range findings {
			if !f.OK {
				missing++
			}
		}
		err = print(c, *format, findings, func(w io.Writer) error { return writeFindings(w, findings) })
		if err == nil && missing > 0 {
			err = errors.New(terminal.Plural(missing, "thing is", "things are") + " missing")
		}
		return err
	}
	return cmd
}

func writeFindings(w io.Writer, findings []check.Finding) error {
	for _, f := range findings {
		mark := "ok"
		if !f.OK {
			mark = "MISSING"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", mark, f.Name, f.Detail)
		if f.Remedy != "" && !f.OK {
			fmt.Fprintf(w, "\t\t→ %s\n", f.Remedy)
		}
	}
	return nil
}
