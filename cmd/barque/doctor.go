package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/clusterstatus/doctor"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
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

// examine does the work of the command. What could not be asked is a finding, too.
func examine(c *cobra.Command, a *asker, path, format string) error {
	asks := a.asks()
	e := doctor.New(asks.Procedures())
	h, err := asks.Ask(c.Context())
	switch {
	case c.Context().Err() != nil:
		return c.Context().Err()
	case err != nil && !ask.IsNoAnswer(err):
		return err
	case err != nil:
		e.Add(clusterstatus.Warning{Severity: clusterstatus.Critical, Text: err.Error(), On: "each server", Mend: e.Procedures.Any})
	default:
		e.Status = h.Status()
		fmt.Fprintf(c.ErrOrStderr(), "asking %s\n", terminal.Plural(len(e.Status.ServerNames()), "server", "servers"))
		e.Collect(c.Context(), h, a.timeout)
	}
	e.Local(c.Context(), a.dataDir, node.Check(a.dataDir, rootdir.Default))
	if err := e.DevNodes(asks.DevDir()); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "what is here of the dev cluster's nodes is not in the file: %v\n", err)
	}
	if err := c.Context().Err(); err != nil {
		return c.Context().Err()
	}
	e.Diagnose()
	if path != "" {
		if err := e.Save(path); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		e.File = path
	}
	if err := printOn(c, format, e, e.Write); err != nil {
		return err
	}
	return examined(e)
}

// examined gives what was found an exit code.
func examined(e *doctor.Examination) error {
	switch {
	case e.Status == nil:
		return &exitcode.Error{Code: exitcode.NoAnswer}
	case e.Status.Health == clusterstatus.Healthy && len(e.Findings) > 0:
		return &exitcode.Error{Code: exitcode.Degraded}
	}
	return healthError(e.Status.Health)
}
