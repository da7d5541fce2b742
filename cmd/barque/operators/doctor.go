package operators

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus/doctor"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/preflight"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/rootdir"
)

func clusterDoctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find faults, and collect diagnostic data in one file",
		Long: `Find the cluster's faults with their remedies, and collect diagnostic data in one file:

  - the status
  - of every server: its last log lines, metrics, goroutines, store, gossip views,
    versions, files with their sizes, and data of the kernel
  - of the API: nodes, events and pods, without the contents of pods

The file has no secrets: none are collected, and text that looks like a secret is removed.
Names and addresses remain: review the file before you share it.

It works without a quorum and with dead servers. Run it on the machine of a dead server to
include that server. The exit codes are those of 'barque cluster status'. A note is no fault.`,
		Example: "  barque cluster doctor\n  barque cluster doctor --output /tmp/x.tar.gz\n  barque cluster doctor --output ''        # only the faults",
		Args:    command.NoArgs,
	}
	a := command.AddAskerFlags(cmd)
	output := cmd.Flags().String("output", "barque-doctor-TIME.tar.gz",
		"output file, which must not exist; empty for none")
	format := cmd.Flags().String("format", "", "json or yaml instead of text for people")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := errors.Join(command.CheckFormat(c, *format), a.Check(c)); err != nil {
			return err
		}
		path := strings.ReplaceAll(*output, "TIME", time.Now().UTC().Format("20060102T150405Z"))
		if path != "" {
			if err := freePath(path); err != nil {
				return command.Usage(c, err)
			}
		}
		return examine(c, a, path, *format)
	}
	return cmd
}

// freePath refuses a file that exists already, or that cannot be made.
func freePath(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already: give another name, or remove it first", path)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no directory %s for the file", filepath.Dir(path))
	}
	return nil
}

// examine does the work of the command.
func examine(c *cobra.Command, a *command.Asker, path, format string) error {
	e, err := doctor.Examine(c.Context(), a.Asks(), doctor.Options{
		Machine: func() []check.Finding { return preflight.Check(a.DataDir, rootdir.Default) },
		File:    path,
		Tell:    command.Teller(c),
	})
	if err != nil {
		return err
	}
	if err := command.PrintOn(c, format, e, e.Write); err != nil {
		return err
	}
	return e.Err()
}
