package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus/doctor"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/rootdir"
)

func clusterDoctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong, and put everything that helps to find more into one file",
		Long: `Find what is wrong with the cluster, each with what mends it, and put everything that
helps to find more into one file: the status, and of every server its last log lines,
metrics, goroutines, store, gossip views, versions, files with their sizes, and what the
kernel tells; the nodes, events and pods of the API, without what is in the pods.

No secrets are in the file: none are collected, and what looks like one is taken out of
the text. Look through it all the same before you give it away: names and addresses
stay. It works without a quorum and with dead servers; of these, run it on the machine.
The exit codes are those of 'barque cluster status'. What is called a note is no fault.`,
		Example: "  barque cluster doctor\n  barque cluster doctor --output /tmp/x.tar.gz\n  barque cluster doctor --output ''        # only what is wrong",
		Args:    noArgs,
	}
	a := addAskerFlags(cmd)
	output := cmd.Flags().String("output", "barque-doctor-TIME.tar.gz", "the file, which must not exist yet; empty for none")
	format := cmd.Flags().String("format", "", "json or yaml instead of text for people")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := errors.Join(checkFormat(c, *format), a.check(c)); err != nil {
			return err
		}
		path := strings.ReplaceAll(*output, "TIME", time.Now().UTC().Format("20060102T150405Z"))
		if path != "" {
			if err := freePath(path); err != nil {
				return &usageError{c.CommandPath(), err}
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
func examine(c *cobra.Command, a *asker, path, format string) error {
	e, err := doctor.Examine(c.Context(), a.asks(), doctor.Options{
		Machine: func() []check.Finding { return node.Check(a.dataDir, rootdir.Default) },
		File:    path,
		Tell:    teller(c),
	})
	if err != nil {
		return err
	}
	if err := printOn(c, format, e, e.Write); err != nil {
		return err
	}
	return e.Err()
}
