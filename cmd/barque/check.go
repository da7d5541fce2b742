package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/rootdir"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Tell whether this machine has what Barque needs, before anything starts",
		Args:  noArgs,
	}
	format := outputFlag(cmd)
	dataDir := cmd.Flags().String("data-dir", defaultDataDir, "where the node's data would be kept")
	rootDir := cmd.Flags().String("kubelet-root-dir", rootdir.Default, "where the volumes of pods would be")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		findings := node.Check(*dataDir, *rootDir)
		missing := 0
		for _, f := range findings {
			if !f.OK {
				missing++
			}
		}
		err := print(c, *format, findings, func(w io.Writer) error { return writeFindings(w, findings) })
		if err == nil && missing > 0 {
			err = errors.New(plural(missing, "thing is", "things are") + " missing on this machine")
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

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
