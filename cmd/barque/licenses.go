package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/release/licenses"
)

// licensesCommand prints the licences of others.
func licensesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "licenses",
		Short: "Print the licence texts of the libraries in this program",
		Long: `Print the licence texts of the Go modules and C libraries that are compiled into this
program, and into the programs that it carries: runc, containerd's shim, the CNI plugins and the
built-in images.`,
		Args: command.NoArgs,
	}
	format := command.OutputFlag(cmd)
	names := cmd.Flags().Bool("names", false, "only the names and versions")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		all, err := licenses.All()
		if err != nil {
			return err
		}
		if *format == "" && !*names {
			return licenses.Write(c.OutOrStdout(), all)
		}
		if *names {
			for i := range all {
				all[i].Texts = nil
			}
		}
		return command.Print(c, *format, all, func(w io.Writer) error {
			for _, one := range all {
				if _, err := fmt.Fprintln(w, one.Heading()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}
