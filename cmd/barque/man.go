package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/version"
)

// manCommand writes the manual pages, for packages. Their date is that of SOURCE_DATE_EPOCH.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write a manual page for each command into a directory",
		Hidden: true,
		Args:   command.ExactArgs("DIRECTORY"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writeManPages(c.Root(), args[0])
		},
	}
}

// writeManPages writes the pages of a command and of those below it.
func writeManPages(root *cobra.Command, dir string) error {
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Source: "barque " + version.Version, Manual: "Barque"}
	header.Title = strings.ToUpper(root.Name())
	if err := doc.GenManTree(root, header, dir); err != nil {
		return fmt.Errorf("write manual pages into %s: %w", dir, err)
	}
	return nil
}
