// Package revocations has the commands `barque cert revoked`, `revoke` and `readmit`, and `barque
// user ls` and `revoke`.
package revocations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// clientOf returns a client by --kubeconfig.
func clientOf(kubeconfig string) (rest.Interface, *rest.Config, error) {
	client, config, err := command.NewClient(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	return client.Discovery().RESTClient(), config, nil
}

// ListCommand is `barque cert revoked`.
func ListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoked",
		Short: "List the certificates that are revoked",
		Long: `List the certificates that are revoked: those of removed servers and agents, and those that
"barque cert revoke" and "barque user revoke" have named. An entry goes when the certificates that
it means have ended, or the CA has, or when the CA was exchanged.`,
		Args: command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		client, config, err := clientOf(*kubeconfig)
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
		return command.Print(c, *format, entries, func(w io.Writer) error { return write(w, entries) })
	}
	return cmd
}

func write(w io.Writer, entries []revocation.Entry) error {
	fmt.Fprintln(w, "KIND\tNAME\tID\tSINCE\tUNTIL\tBY\tWHY")
	for _, e := range entries {
		id := e.ID
		switch {
		case e.Readmitted:
			id = strings.TrimSpace(e.ID + " let in again")
		case e.Kind == revocation.Agent || e.Kind == revocation.User:
			id = fmt.Sprintf("issued up to revision %d", e.Revision)
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Kind, e.Name, id, e.At.UTC().Format(time.RFC3339),
			e.Until.UTC().Format(time.RFC3339), e.By, e.Why)
		if err != nil {
			return err
		}
	}
	return nil
}

// RevokeCommand is `barque cert revoke`.
func RevokeCommand() *cobra.Command {
	var serial, file, why string
	var force bool
	cmd := &cobra.Command{
		Use:   "revoke (--file FILE | --serial HEX)",
		Short: "Revoke the certificate of a user",
		Long: `Revoke one client certificate, such as one of a CertificateSigningRequest, for good: by its
file, by a kubeconfig that has it, or by its serial number as openssl and audit tools print
it. All servers and kubelets refuse it within seconds, and running watches with it end.

Your own certificate, and one of a present member, is revoked with --force only. So is one
of which the serial number alone is known while a member does not say which certificates it
has. A CA is exchanged, and not revoked (barque cert rotate --ca).

All certificates of a user are revoked by its name (barque user revoke NAME), those of a
server by removing it (barque cluster remove NAME), and those of an agent by deleting its
Node (barque kubectl delete node NAME).`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&file, "file", "",
		"file of the certificate, in PEM, or a kubeconfig with it; - reads the input")
	cmd.Flags().StringVar(&serial, "serial", "", "serial number of the certificate, in hexadecimal")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the list")
	cmd.Flags().BoolVar(&force, "force", false, "also revoke your own certificate, or one of a present member")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		order, err := orderOf(c, file, serial)
		if errors.Is(err, revocation.ErrCA) {
			return &exitcode.Error{Code: exitcode.Refused, Err: fmt.Errorf("refused, nothing was changed: %w", err)}
		}
		if err == nil {
			order.Why, order.Force = why, force
			err = order.Check()
		}
		if err := errors.Join(command.CheckFormat(c, *format), command.Usage(c, err)); err != nil {
			return err
		}
		client, config, err := clientOf(*kubeconfig)
		if err != nil {
			return err
		}
		if order.Name == "" {
			order = named(c.Context(), client, config, order)
		}
		made, err := revoke(c.Context(), client, config, "revoke the certificate", order,
			"`barque cert revoked` shows whether it is revoked")
		if err != nil {
			return err
		}
		if next := nextStep(made); next != "" {
			fmt.Fprintln(c.ErrOrStderr(), next)
		}
		return command.Print(c, *format, made, func(w io.Writer) error { return writeRevoked(w, made.Entry) })
	}
	return cmd
}

// named completes an order with a serial number alone by the list of users, if that is available.
func named(ctx context.Context, client rest.Interface, config *rest.Config, o revocation.Order) revocation.Order {
	all, err := listed(ctx, client, config)
	if err != nil {
		return o
	}
	of, err := onList(o, all)
	if err != nil {
		return o
	}
	return of
}

// nextStep tells what the member needs that had the certificate in use; empty without one.
func nextStep(made revocation.Made) string {
	switch {
	case made.Node == "":
		return ""
	case made.Role != pki.RoleServer:
		return fmt.Sprintf(
			"agent %[1]s had this certificate in use, and nobody manages its pods now: `barque cert readmit %[1]s` lets it in again", made.Node)
	case made.Use == credentials.AdminName:
		return fmt.Sprintf(
			"the admin.kubeconfig of server %[1]s has this certificate: `barque cert rotate --server %[1]s` gives it a new one", made.Node)
	}
	return fmt.Sprintf(
		"server %[1]s had this certificate in use (%[2]s): `barque cert rotate --server %[1]s` gives it new ones",
		made.Node, made.Use)
}

// revoke makes the order. shows is the sentence after an unknown outcome, about the way to look.
func revoke(
	ctx context.Context, client rest.Interface, config *rest.Config, what string, order revocation.Order, shows string,
) (made revocation.Made, err error) {
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
	certificate, err := certificateIn(file, data)
	if err != nil {
		return revocation.Order{}, err
	}
	if certificate != nil {
		data = certificate
	}
	order, err := revocation.OrderFor(data)
	if err != nil {
		return order, fmt.Errorf("%s: %w", file, err)
	}
	return order, nil
}

// certificateIn returns the client certificate of the current user in a kubeconfig; nil for any
// other text. A relative path in it begins at the kubeconfig's directory.
func certificateIn(file string, data []byte) ([]byte, error) {
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, nil // another text
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, nil
	}
	user := config.AuthInfos[current.AuthInfo]
	switch {
	case user == nil:
		return nil, nil
	case len(user.ClientCertificateData) > 0 || user.ClientCertificate == "":
		return user.ClientCertificateData, nil
	}
	path := user.ClientCertificate
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(file), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the certificate that the kubeconfig %s names: %w", file, err)
	}
	return text, nil
}

// ReadmitCommand is `barque cert readmit`.
func ReadmitCommand() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "readmit NODE",
		Short: "Let an agent in again that was locked out",
		Long: `Let an agent in again whose Node was deleted by mistake: its certificates count again, for the
key that the cluster has recorded. It makes its Node by itself. Certificates of the agent
that "barque cert revoke" has named count again, too. An agent whose machine was lost or
stolen is not to be let in again: let the new machine join with a token.`,
		Args: command.ExactArgs("NODE"),
	}
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the list")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		order := revocation.Order{Readmit: args[0], Why: why}
		if err := errors.Join(command.CheckFormat(c, *format), command.Usage(c, order.Check())); err != nil {
			return err
		}
		client, config, err := clientOf(*kubeconfig)
		if err != nil {
			return err
		}
		made, err := revoke(c.Context(), client, config, "let the agent in again", order,
			"`barque cert revoked` shows whether it is revoked")
		if err != nil {
			return err
		}
		return command.Print(c, *format, made, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "agent %q is let in again\n", made.Name)
			return err
		})
	}
	return cmd
}
