package operators

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/membership/keyring"
)

func clusterKeysCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Show the gossip keys and rotate them"}
	cmd.AddCommand(keysListCommand(), keysRotateCommand())
	return cmd
}

func keysListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys of gossip, and how far each member is",
		Long: `List the gossip keys by their IDs, and the generation that each member reports. The
keys themselves are not shown.`,
		Args: command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		answer, err := remote.Keys(c.Context(), config)
		if err != nil {
			return err
		}
		return command.Print(c, *format, answer.Status, func(w io.Writer) error { return writeKeys(w, &answer.Status) })
	}
	return cmd
}

func keysRotateCommand() *cobra.Command {
	var change remote.KeysChange
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give gossip another key, while the cluster runs",
		Long: `Replace the gossip key, while the cluster runs:

  1. All members get the new key.
  2. All members send with it.
  3. All members drop the old key.

Each step begins when all living members have finished the previous step. The servers
continue without this command and under any leader. Run the command again to watch.

It is refused while members are away, unless --force is given: those get the new key
from a server when they come back. --force also skips members that do not follow within
half a minute.`,
		Example: "  barque cluster keys rotate\n  barque cluster keys rotate --undo",
		Args:    command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.Flags().BoolVar(&change.Force, "force", false, "continue without members that are away or do not follow")
	cmd.Flags().BoolVar(&change.Undo, "undo", false,
		"take back a running rotation, as long as no member has dropped the old key")
	cmd.Flags().BoolVar(&change.DryRun, "dry-run", false, "only tell whether it would be refused, and why")
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long to wait for the end; 0 does not wait")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		switch {
		case wait < 0:
			return command.Usage(c, fmt.Errorf("--wait %s is negative", wait))
		case change.Force && change.Undo:
			return command.Usage(c, errors.New("give --force or --undo, not both"))
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		answer, err := change.Make(c.Context(), config)
		if err == nil && !change.DryRun && wait > 0 {
			answer, err = remote.AwaitKeys(c.Context(), config, answer, wait, command.Teller(c))
		}
		if err != nil {
			return err
		}
		return command.Print(c, *format, answer.Status, func(w io.Writer) error {
			if change.DryRun {
				fmt.Fprintln(w, "It would be done; nothing was changed.")
			}
			return writeKeys(w, &answer.Status)
		})
	}
	return cmd
}

func writeKeys(w io.Writer, s *keyring.Status) error {
	fmt.Fprintf(w, "generation\t%d\nrotation\t%s\n", s.Generation, s.Text)
	if len(s.Waiting) > 0 {
		fmt.Fprintf(w, "waiting for\t%s\n", strings.Join(s.Waiting, ", "))
	}
	fmt.Fprintln(w, "\nKEY\tUSE\tMADE")
	for _, k := range s.Keys {
		use, made := "read", "with the cluster"
		if k.Sends {
			use = "send and read"
		}
		if !k.Made.IsZero() {
			made = k.Made.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", k.ID, use, made)
	}
	fmt.Fprintln(w, "\nMEMBER\tROLE\tSTATE\tGENERATION\tNOTE")
	for _, m := range s.Members {
		generation, note := fmt.Sprint(m.Generation), "-"
		if m.State != "alive" {
			generation, note = "-", "gets the newest key from a server when it comes back"
		}
		if m.Barred != "" {
			note = "gets no key: " + m.Barred
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Name, m.Role, m.State, generation, note)
	}
	return nil
}
