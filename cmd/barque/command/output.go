package command

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/internal/terminal"
)

// OutputFlag adds -o and returns where its value will be.
func OutputFlag(c *cobra.Command) *string {
	format := new(string)
	c.Flags().StringVarP(format, "output", "o", "", "json or yaml instead of text for people")
	return format
}

// CheckFormat refuses an unknown format before anything is changed.
func CheckFormat(c *cobra.Command, format string) error {
	if format == "" || format == "json" || format == "yaml" {
		return nil
	}
	return Usage(c, fmt.Errorf("output format %q: want json or yaml", format))
}

// Print writes the value in the format that was asked for; text writes it for people.
func Print(c *cobra.Command, format string, value any, text func(w io.Writer) error) error {
	out := c.OutOrStdout()
	switch format {
	case "":
		table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		if err := text(table); err != nil {
			return err
		}
		return table.Flush()
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		return WriteYAML(out, value)
	default:
		return Usage(c, fmt.Errorf("output format %q: want json or yaml", format))
	}
}

// WriteYAML writes a value as a YAML document.
func WriteYAML(out io.Writer, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

// PrintOn is Print for text that depends on the terminal's width and colours.
func PrintOn(c *cobra.Command, format string, value any, text func(w io.Writer, on terminal.Screen) error) error {
	if format != "" {
		return Print(c, format, value, nil)
	}
	return text(c.OutOrStdout(), terminal.Of(c.OutOrStdout()))
}

// Size writes bytes with three digits or so.
func Size(n uint64) string {
	unit := uint64(1)
	for n/unit >= 10<<10 {
		unit <<= 10
	}
	return resource.NewQuantity(int64(n/unit*unit), resource.BinarySI).String()
}

// Yes is yes or no.
func Yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// NewLogger logs to standard error.
func NewLogger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
