package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/membership/keyring"
)

func clusterKeysCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Look at the keys of gossip and rotate them"}
	cmd.AddCommand(keysListCommand(), keysRotateCommand())
	return cmd
}

func keysListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys of gossip, and how far each member is",
		Long: `List the keys of gossip by their IDs, and which generation of them each member says
it uses. The keys themselves are not shown.`,
		Args: noArgs,
	}
	format, kubeconfig := outputFlag(cmd), kubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		config, err := clientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		answer, err := remote.Keys(c.Context(), config)
		if err != nil {
			return err
		}
		return print(c, *format, answer.Status, func(w io.Writer) error { return writeKeys(w, &answer.Status) })
	}
	return cmd
}

func keysRotateCommand() *cobra.Command {
	var change remote.KeysChange
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give gossip another key, while the cluster runs",
		Long: `Give gossip another key, while the cluster runs: all members get it, then all send with
it, then all drop the old one; each step begins when all living members have done the
one before. The servers go on by themselves, whatever becomes of this command and of
the leader; run it again to go on watching.

It is refused while members are away, unless --force is given: those get the new key
from a server when they come back. With --force it also goes on without members that
do not follow within half a minute.`,
		Example: "  barque cluster keys rotate\n  barque cluster keys rotate --undo",
		Args:    noArgs,
	}
	format, kubeconfig := outputFlag(cmd), kubeconfigFlag(cmd)
	cmd.Flags().BoolVar(&change.Force, "force", false, "go on without members that are away or do not follow")
	cmd.Flags().BoolVar(&change.Undo, "undo", false, "take back a rotation that is under way, as long as no member has dropped the old key")
	cmd.Flags().BoolVar(&change.DryRun, "dry-run", false, "only tell whether it would be refused, and why")
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long to wait for the end; 0 does not wait")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		switch {
		case wait < 0:
			return &usageError{c.CommandPath(), fmt.Errorf("--wait %s is negative", wait)}
		case change.Force && change.Undo:
			return &usageError{c.CommandPath(), errors.New("give --force or --undo, not both")}
		}
		config, err := clientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		answer, err := change.Make(c.Context(), config)
		if err == nil && !change.DryRun && wait > 0 {
			answer, err = remote.AwaitKeys(c.Context(), config, answer, wait, teller(c))
		}
		if err != nil {
			return err
		}
		return print(c, *format, answer.Status, func(w io.Writer) error {
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
		if k.Made != nil {
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
