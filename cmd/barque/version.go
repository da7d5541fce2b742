package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/internal/version"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Show the version", Args: command.NoArgs}
	format := command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		info := struct {
			Version    string `json:"version"`
			Kubernetes string `json:"kubernetes"`
			Go         string `json:"go"`
			Platform   string `json:"platform"`
			// StoreFormat is that of the store's directory. An upgrade asks the program for it.
			StoreFormat int `json:"storeFormat"`
		}{version.Version, version.Kubernetes, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH,
			node.StoreFormat}
		return command.Print(c, *format, info, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "barque %s\nserves the API of Kubernetes %s\nbuilt with %s for %s\n", info.Version,
				info.Kubernetes, info.Go, info.Platform)
			return err
		})
	}
	return cmd
}
