// Package revocations has the commands `barque cert revoked`, `revoke` and `readmit`, and `barque
// user ls` and `revoke`.
package revocations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/membership/revocation"
)

// Tools are those of all commands.
type Tools struct {
	OutputFlag, KubeconfigFlag func(*cobra.Command) *string
	CheckFormat                func(c *cobra.Command, format string) error
	Print                      func(c *cobra.Command, format string, value any, text func(io.Writer) error) error
	Usage                      func(c *cobra.Command, err error) error
	NoArgs, NodeArg            cobra.PositionalArgs
	Client                     func(kubeconfig string) (rest.Interface, *rest.Config, error)
}

// ListCommand is `barque cert revoked`.
func ListCommand(t Tools) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoked",
		Short: "List the certificates that are revoked",
		Long: `List the certificates that are revoked: those of removed servers and agents, and those that
"barque cert revoke" and "barque user revoke" have named. An entry goes when the certificates that
it means have ended, or the CA has, or when the CA was exchanged.`,
		Args: t.NoArgs,
	}
	format, kubeconfig := t.OutputFlag(cmd), t.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := t.CheckFormat(c, *format); err != nil {
			return err
		}
		client, config, err := t.Client(*kubeconfig)
		if err != nil {
			return err
		}
		var all revocation.Entries
		err = remote.Ask(c.Context(), config, "list the revoked certificates", func(ctx context.Context) (err error) {
			all, err = remote.Revoked(ctx, client)
			return err
		})
		if err != nil {
			return err
		}
		entries := append([]revocation.Entry{}, all.List...)
		return t.Print(c, *format, entries, func(w io.Writer) error { return write(w, entries) })
	}
	return cmd
}

func write(w io.Writer, entries []revocation.Entry) error {
	fmt.Fprintln(w, "KIND\tNAME\tID\tSINCE\tUNTIL\tBY\tWHY")
	for _, e := range entries {
		id := e.ID
		switch {
		case e.Readmitted:
			id = "let in again"
		case e.Kind == revocation.Agent || e.Kind == revocation.User:
			id = fmt.Sprintf("issued up to revision %d", e.Revision)
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Kind, e.Name, id, e.At.UTC().Format(time.RFC3339), e.Until.UTC().Format(time.RFC3339), e.By, e.Why)
		if err != nil {
			return err
		}
	}
	return nil
}

// RevokeCommand is `barque cert revoke`.
func RevokeCommand(t Tools) *cobra.Command {
	var serial, file, why string
	var force bool
	cmd := &cobra.Command{
		Use:   "revoke (--file FILE | --serial HEX)",
		Short: "Revoke the certificate of a user",
		Long: `Revoke one client certificate, such as one of a CertificateSigningRequest, for good: by its
file, or by its serial number as openssl and audit tools print it. All servers and kubelets
refuse it within seconds, and running watches with it end. Your own certificate, and one of a
present member, is revoked with --force only.

All certificates of a user are revoked by its name (barque user revoke NAME), those of a
server by removing it (barque cluster remove NAME), and those of an agent by deleting its
Node (barque kubectl delete node NAME).`,
		Args: t.NoArgs,
	}
	cmd.Flags().StringVar(&file, "file", "", "file of the certificate, in PEM; - reads the input")
	cmd.Flags().StringVar(&serial, "serial", "", "serial number of the certificate, in hexadecimal")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the list")
	cmd.Flags().BoolVar(&force, "force", false, "also revoke your own certificate, or one of a present member")
	format, kubeconfig := t.OutputFlag(cmd), t.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		order, err := orderOf(c, file, serial)
		if err == nil {
			order.Why, order.Force = why, force
			err = order.Check()
		}
		if err := errors.Join(t.CheckFormat(c, *format), t.Usage(c, err)); err != nil {
			return err
		}
		client, config, err := t.Client(*kubeconfig)
		if err != nil {
			return err
		}
		made, err := revoke(c.Context(), client, config, "revoke the certificate", order, "`barque cert revoked` shows whether it is revoked")
		if err != nil {
			return err
		}
		return t.Print(c, *format, made, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "certificate %s of %q is revoked\n", made.ID, made.Name)
			return err
		})
	}
	return cmd
}

// revoke makes the order. shows is the sentence after an unknown outcome, about the way to look.
func revoke(ctx context.Context, client rest.Interface, config *rest.Config, what string, order revocation.Order, shows string) (made revocation.Made, err error) {
	err = remote.Ask(ctx, config, what, func(ctx context.Context) (err error) {
		made, err = remote.Revoke(ctx, client, order)
		return err
	})
	if err != nil {
		err = remote.Outcome(err, shows+"; the command may be repeated")
	}
	return made, err
}

func orderOf(c *cobra.Command, file, serial string) (revocation.Order, error) {
	switch {
	case (file == "") == (serial == ""):
		return revocation.Order{}, errors.New("give one of --file and --serial")
	case serial != "":
		return revocation.Order{Serial: revocation.ParseSerial(serial)}, nil
	}
	data, err := []byte(nil), error(nil)
	if file == "-" {
		data, err = io.ReadAll(c.InOrStdin())
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return revocation.Order{}, err
	}
	order, err := revocation.OrderFor(data)
	if err != nil {
		return order, fmt.Errorf("%s: %w", file, err)
	}
	return order, nil
}

// ReadmitCommand is `barque cert readmit`.
func ReadmitCommand(t Tools) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "readmit NODE",
		Short: "Let an agent in again whose Node was deleted",
		Long: `Let an agent in again whose Node was deleted by mistake: its certificates count again, for the
key that the cluster has recorded. It makes its Node by itself. An agent whose machine was
lost or stolen is not to be let in again: let the new machine join with a token.`,
		Args: t.NodeArg,
	}
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the list")
	format, kubeconfig := t.OutputFlag(cmd), t.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		order := revocation.Order{Readmit: args[0], Why: why}
		if err := errors.Join(t.CheckFormat(c, *format), t.Usage(c, order.Check())); err != nil {
			return err
		}
		client, config, err := t.Client(*kubeconfig)
		if err != nil {
			return err
		}
		made, err := revoke(c.Context(), client, config, "let the agent in again", order, "`barque cert revoked` shows whether it is revoked")
		if err != nil {
			return err
		}
		return t.Print(c, *format, made, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "agent %q is let in again\n", made.Name)
			return err
		})
	}
	return cmd
}
