package revocations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/adminapi/remote/users"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/revocation"
)

// listed returns the users' certificates that have not ended. At a server of an earlier version
// none is revoked.
func listed(ctx context.Context, client rest.Interface, config *rest.Config) (all []users.Info, err error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	err = remote.Ask(ctx, config, "list the users", func(ctx context.Context) error {
		revoked, err := remote.Revoked(ctx, client)
		if err != nil && !errors.Is(err, remote.ErrRevokesNothing) {
			return fmt.Errorf("list the revoked certificates: %w", err)
		}
		all, err = users.List(ctx, api, time.Now(), revoked.Check)
		return err
	})
	return all, err
}

// UserListCommand is `barque user ls`.
func UserListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the users' certificates that have not ended",
		Long: `List the certificates of 'barque user add' that have not ended, and whether they are revoked.
Certificates that were made otherwise, by a CertificateSigningRequest of one's own, are not
listed.`,
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
		all, err := listed(c.Context(), client, config)
		if err != nil {
			return err
		}
		return command.Print(c, *format, all, func(w io.Writer) error { return writeUsers(w, all) })
	}
	return cmd
}

func writeUsers(w io.Writer, all []users.Info) error {
	fmt.Fprintln(w, "NAME\tGROUPS\tSTATUS\tISSUED\tEXPIRES\tMADE BY\tSERIAL")
	for _, u := range all {
		groups, status := strings.Join(u.Groups, ","), "valid"
		if groups == "" {
			groups = "-"
		}
		if u.Revoked != "" {
			status = "revoked"
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", u.Name, groups, status,
			u.Issued.UTC().Format(time.RFC3339), u.Expires.UTC().Format(time.RFC3339), u.By, u.Serial)
		if err != nil {
			return err
		}
	}
	return nil
}

// UserRevokeCommand is `barque user revoke`.
func UserRevokeCommand() *cobra.Command {
	var serial, why string
	var force bool
	cmd := &cobra.Command{
		Use:   "revoke (NAME | --serial HEX)",
		Short: "Revoke a user's certificates",
		Long: `Revoke all certificates that a user has, or a single one of them. All servers and kubelets
refuse them within seconds; running watches, commands and port-forwards end. A certificate
that 'barque user add' makes for the name later counts.

By its name, all certificates of a user are revoked, also those that 'barque user ls' does not
list: whose request was deleted, or that were made by a CertificateSigningRequest of one's
own. A name that is not listed, and your own, are revoked with --force only.

It takes back certificates and nothing else. An administrator may have made others: service
accounts' tokens (a day at most), users, join tokens, roles and bindings.`,
		Example: `  barque user revoke ann --why 'her laptop was stolen'
  barque user revoke --serial 5f1c09`,
		Args: cobra.ArbitraryArgs, // a name, or a flag in its place
	}
	cmd.Flags().StringVar(&serial, "serial", "",
		"serial number of the one certificate to revoke, as 'barque user ls' shows it")
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the list")
	cmd.Flags().BoolVar(&force, "force", false, "also revoke a name that is not listed, or your own certificate")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		order, err := userOrder(args, serial)
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
		all, err := listed(c.Context(), client, config)
		if err != nil {
			return err
		}
		if order, err = onList(order, all); err != nil {
			return err
		}
		made, err := revoke(c.Context(), client, config, "revoke the user's certificates", order,
			"`barque user ls` shows whether they are revoked")
		if err != nil {
			return err
		}
		for _, line := range left(made.Entry, all) {
			fmt.Fprintln(c.ErrOrStderr(), line)
		}
		return command.Print(c, *format, made, func(w io.Writer) error { return writeRevoked(w, made.Entry) })
	}
	return cmd
}

func writeRevoked(w io.Writer, made revocation.Entry) error {
	text := fmt.Sprintf("all certificates of %q that were made until now are revoked", made.Name)
	if made.Kind == revocation.Certificate {
		text = fmt.Sprintf("certificate %s is revoked", made.ID)
		if made.Name != "" {
			text = fmt.Sprintf("certificate %s of %q is revoked", made.ID, made.Name)
		}
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func userOrder(args []string, serial string) (revocation.Order, error) {
	switch {
	case len(args) > 1:
		return revocation.Order{}, fmt.Errorf("want one NAME, got %d", len(args))
	case (len(args) == 0) == (serial == ""), len(args) == 1 && args[0] == "":
		return revocation.Order{}, errors.New("give either the NAME of a user, or --serial")
	case serial != "":
		return revocation.Order{Serial: revocation.ParseSerial(serial)}, nil
	}
	return revocation.Order{User: args[0]}, nil
}

// onList completes an order by the list of users. A name that is not on it may be a wrong one.
func onList(o revocation.Order, all []users.Info) (revocation.Order, error) {
	if o.User != "" {
		if !o.Force && !slices.ContainsFunc(all, func(u users.Info) bool { return u.Name == o.User }) {
			return o,
				&exitcode.Error{Code: exitcode.Refused,
					Err: fmt.Errorf(
						"refused, nothing was changed: `barque user ls` lists no certificate of %q; certificates of the name that are not listed are revoked with --force", o.User)}
		}
		return o, nil
	}
	i := slices.IndexFunc(all, func(u users.Info) bool { return revocation.ParseSerial(u.Serial) == o.Serial })
	if i < 0 {
		return o,
			&exitcode.Error{Code: exitcode.Usage,
				Err: fmt.Errorf(
					"`barque user ls` lists no certificate with the serial number %s; `barque cert revoke --serial` revokes any certificate", o.Serial)}
	}
	o.Name, o.Until = all[i].Name, all[i].Expires
	return o, nil
}

// left are lines about the certificates that count further although the user may have them.
func left(made revocation.Entry, all []users.Info) (lines []string) {
	for _, u := range all {
		if u.By == made.Name && u.Name != made.Name && u.Revoked == "" {
			lines = append(lines,
				fmt.Sprintf(
					"%s has made a certificate for %s (%s), which counts until %s: `barque user revoke %s` revokes it",
					made.Name, u.Name, strings.Join(u.Groups, ","), u.Expires.UTC().Format(time.RFC3339), u.Name))
		}
		if made.Kind == revocation.Certificate && u.Name == made.Name && revocation.ParseSerial(u.Serial) != made.ID &&
			u.Revoked == "" {
			lines = append(lines,
				fmt.Sprintf("%s has another certificate, %s, which counts until %s", u.Name, u.Serial,
					u.Expires.UTC().Format(time.RFC3339)))
		}
	}
	return lines
}
