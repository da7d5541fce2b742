package operators

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/ownca"
	"github.com/barque/barque/cmd/barque/revocations"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
)

// CertCommand is `barque cert`.
func CertCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cert", Short: "Show, renew and revoke the cluster's certificates", Args: command.NoArgs}
	cmd.AddCommand(certShowCommand(), certRotateCommand(), revocations.ListCommand(),
		revocations.RevokeCommand(), revocations.ReadmitCommand())
	return cmd
}

func certShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show all certificates of the cluster and when they end",
		Long: `Show all certificates of the cluster and their expiry. Each node renews its own
certificates after about two thirds of their lifetime. A warning names a node that has
not renewed. For an unreachable agent the gossip credential is shown: it is issued
together with the agent's certificates. During an exchange of the CA the command also
shows the progress and the next step.`,
		Args: command.NoArgs,
	}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		all, err := certs(*kubeconfig).All(c.Context())
		if err != nil {
			return err
		}
		return command.Print(c, *format, all, func(w io.Writer) error { return writeCertificates(w, all) })
	}
	return cmd
}

// certs asks the server of the kubeconfig.
func certs(kubeconfig string) remote.Certs {
	return remote.Certs{Config: func() (*rest.Config, error) { return command.ClientConfig(kubeconfig) }}
}

func writeCertificates(w io.Writer, all *adminapi.ClusterCertificates) error {
	for _, warning := range all.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if len(all.Warnings) > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "NODE\tCERTIFICATE\tSUBJECT\tISSUER\tENDS\tLEFT\tFILE")
	row := func(where string, c credentials.CertificateInfo) {
		file := c.File
		if file == "" {
			file = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", where, c.Name, c.Subject, c.Issuer,
			c.NotAfter.UTC().Format(time.RFC3339), leftText(c.SecondsLeft), file)
	}
	for _, ca := range all.CAs {
		row("cluster", ca)
	}
	for _, n := range all.Nodes {
		for _, c := range n.Certificates {
			row(n.Node, c)
		}
	}
	return nil
}

// leftText formats the remaining time for people.
func leftText(seconds int64) string {
	left := time.Duration(seconds) * time.Second
	switch {
	case left < 0:
		return "ended"
	case left >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(left/(24*time.Hour)))
	case left >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(left/time.Hour))
	}
	return left.Round(time.Second).String()
}

// certRotate holds the arguments of `barque cert rotate`.
type certRotate struct {
	kubeconfig, server     string
	ca, accounts           bool
	undo, force, yes, wait bool
	loseAccess             bool
	own                    ownca.Flags
}

func certRotateCommand() *cobra.Command {
	var o certRotate
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Renew certificates now, or exchange the cluster's CA or its key of service accounts",
		Long: `Renew the certificates of all servers now, or of one server. Certificates also renew
themselves in time. Renewal makes new keys. The old certificates stay valid until they
expire. Nothing is restarted.

With --ca the cluster's CA is exchanged for a new one, without downtime:

  1. All nodes trust the new CA.
  2. The new CA issues all certificates again.
  3. All nodes drop the old CA.

Each step waits until every node has finished the previous step. An interrupted exchange
continues by itself, under any leader. The signing key of service account tokens is
exchanged as well. The old key verifies tokens for two more days, in which kubelets
replace the tokens of pods.

With --ca-file and --ca-key-file the new CA is one of your own, such as an intermediate of
a company's root. A cluster that has one goes back to a CA that it makes itself with
--built-in only.

Servers among each other, and the front proxy at extension API servers, have CAs of their
own, which are exchanged at the same time. A cluster that began with an earlier version
gets them in its first exchange; then earlier versions refuse its data directories. With
--joint the new CA is for all purposes, as earlier versions know it.

Afterwards join tokens and client certificates of the old CA are void, also those in
copied kubeconfigs. A client that only verifies servers by the old CA still trusts them.

Certificates of users, as of 'barque user add', are void from the beginning. So begin with
admin.kubeconfig of a server, and not with a certificate of barque:admins of your own:
that is refused without --lose-access.

With --service-accounts only the signing key of service account tokens is exchanged, in
the same way: all servers verify by the new key before any signs with it.`,
		Example: `  barque cert rotate --server s2
  barque cert rotate --ca --yes
  barque cert rotate --ca --ca-file chain.pem --ca-key-file ca.key
  barque cert rotate --ca --undo     # while the new CA has issued nothing
  barque cert rotate --ca --force    # do not wait for dead nodes
  barque cert rotate --service-accounts --yes`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster's administrator (default: $KUBECONFIG, .barque/kubeconfig, or the one of the server on this machine)")
	cmd.Flags().StringVar(&o.server, "server", "", "renew the certificates of this server only")
	cmd.Flags().BoolVar(&o.ca, "ca", false, "exchange the cluster's CA for a new one")
	cmd.Flags().BoolVar(&o.accounts, "service-accounts", false,
		"exchange the key that signs the tokens of service accounts, and not the CA")
	cmd.Flags().BoolVar(&o.undo, "undo", false,
		"with --ca or --service-accounts: cancel an exchange whose new key has signed nothing yet")
	cmd.Flags().BoolVar(&o.force, "force", false,
		"with --ca or --service-accounts: let a running exchange skip dead nodes; after one of the CA these must join again")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "with --ca or --service-accounts: do not ask")
	cmd.Flags().BoolVar(&o.wait, "wait", true, "with --ca or --service-accounts: wait until the exchange is done")
	cmd.Flags().BoolVar(&o.loseAccess, "lose-access", false,
		"with --ca: begin although the client certificate in this kubeconfig is void from then on")
	o.own.Add(cmd.Flags())
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		wrong := func(text string) error { return command.Usage(c, errors.New(text)) }
		all := o.ca || o.accounts
		switch {
		case o.ca && o.accounts:
			return wrong("--ca exchanges the key of service accounts as well: give one of --ca and --service-accounts")
		case (o.undo || o.force) && !all:
			return wrong("--undo and --force belong to an exchange: give --ca or --service-accounts")
		case o.loseAccess && (!o.ca || o.undo || o.force):
			return wrong(
				"--lose-access belongs to the beginning of an exchange of the CA: give it with --ca, without --undo and --force")
		case o.undo && o.force:
			return wrong("--undo and --force contradict each other: give one of them")
		case c.Flags().Changed("wait") && !all:
			return wrong("--wait belongs to an exchange: give --ca or --service-accounts")
		case all && o.server != "":
			return wrong(
				"--server renews the certificates of one server, --ca and --service-accounts exchange the keys of all: give one of them")
		}
		if err := o.own.Check(o.ca, o.undo || o.force); err != nil {
			return wrong(err.Error())
		}
		if all {
			return o.exchange(c)
		}
		return o.leaves(c)
	}
	return cmd
}

// leaves renews the certificates of servers.
func (o *certRotate) leaves(c *cobra.Command) error {
	return certs(o.kubeconfig).Renew(c.Context(), o.server, remote.Renewals{
		Renewed: func(server, keptKey string) {
			fmt.Fprintf(c.OutOrStdout(), "%s has new certificates\n", server)
			if keptKey != "" {
				fmt.Fprintf(c.ErrOrStderr(), "%s keeps its key for other servers: %s\n", server, keptKey)
			}
		},
		Failed: func(server string, err error) { fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", server, err) },
	})
}

// exchange begins, undoes or forces an exchange, or waits for a running one.
func (o *certRotate) exchange(c *cobra.Command) error {
	kubeconfig := command.DevCopyOf(c, o.kubeconfig)
	x := &remote.CAExchange{Certs: certs(o.kubeconfig), Kubeconfig: kubeconfig, Tell: command.Teller(c)}
	is, err := x.Status(c.Context())
	if err != nil {
		return err
	}
	given, err := o.own.Read()
	if err != nil {
		return err
	}
	wish := remote.Wish{Accounts: o.accounts, Undo: o.undo, Force: o.force, Given: given, BuiltIn: o.own.BuiltIn,
		Joint: o.own.Joint}
	step, err := remote.NextStep(&is, wish)
	switch {
	case err != nil:
		return err
	case step == nil:
		fmt.Fprintf(c.ErrOrStderr(), "An exchange of %s is under way since %s.\n", clusterstatus.ExchangeOf(&is),
			is.Since.UTC().Format(time.RFC3339))
		return o.await(c, x, is, kubeconfig)
	}
	if step.Change.BeginsCA() && len(is.Unrecorded) > 0 {
		fmt.Fprintf(c.ErrOrStderr(),
			"While the exchange lasts, a thief of the CA's key passes for a server among servers: %s\n",
			clusterstatus.Unrecorded(&is))
	}
	if !o.yes {
		fmt.Fprint(c.ErrOrStderr(), step.Text+"Go on? [y/N] ")
		if err := command.Confirmed(c); err != nil {
			return err
		}
	}
	if step.Change.BeginsCA() {
		if err := o.freshKeys(c); err != nil {
			return err
		}
	}
	before := is
	if err := x.Change(c.Context(), step.Request, o.loseAccess, &is); err != nil {
		return err
	}
	if step.Change.BeginsCA() {
		fmt.Fprint(c.ErrOrStderr(), remote.Purposes(&before, &is, wish))
	}
	if step.Change == exchange.Undo {
		_, err := fmt.Fprintln(c.OutOrStdout(),
			"the exchange of "+clusterstatus.ExchangeOf(&exchange.Status{Accounts: o.accounts})+" was given up")
		return err
	}
	return o.await(c, x, is, kubeconfig)
}

// freshKeys gives each server another key for the other servers. One that was off is believed by
// its recorded key until the exchange ends, and a thief of its disk has the key of then. It stops
// no exchange: the server may be off now.
func (o *certRotate) freshKeys(c *cobra.Command) error {
	told := false
	tell := func(server string, why any) {
		told = true
		fmt.Fprintf(c.ErrOrStderr(), "%s goes into the exchange with the key that it has: %v\n", server, why)
	}
	err := certs(o.kubeconfig).Renew(c.Context(), "", remote.Renewals{
		Renewed: func(server, keptKey string) {
			if keptKey != "" {
				tell(server, keptKey)
			}
		},
		Failed: func(server string, err error) { tell(server, err) },
	})
	if err != nil && c.Context().Err() != nil {
		return err
	}
	if err != nil && !told {
		fmt.Fprintf(c.ErrOrStderr(), "the servers go into the exchange with the keys that they have: %v\n", err)
	}
	return nil
}

// await reports the progress of the exchange until it is done.
func (o *certRotate) await(
	c *cobra.Command, x *remote.CAExchange, is exchange.Status, kubeconfig *devcluster.Copy,
) error {
	if !o.wait {
		_, err := fmt.Fprintf(c.OutOrStdout(),
			"the exchange of %s is under way; `barque cert show` tells how far it is%s\n",
			clusterstatus.ExchangeOf(&is), kubeconfig.Afterwards())
		return err
	}
	void, err := x.Await(c.Context(), is)
	if err != nil {
		return err
	}
	if o.accounts {
		_, err := fmt.Fprintln(c.OutOrStdout(),
			"the key of service accounts is exchanged. Tokens that the old key has signed are void in two days; kubelets replace those of pods before")
		return err
	}
	text := "the CA is exchanged. Earlier join tokens and client certificates are void; take new kubeconfigs from the data directories of servers (admin.kubeconfig)"
	if void {
		text = "the CA is exchanged. The client certificate in this kubeconfig is of the old CA and void now: take admin.kubeconfig from the data directory of a server"
	} else {
		kubeconfig.Renew()
		if path, renewed := kubeconfig.Renewed(); renewed {
			text = fmt.Sprintf(
				"the CA is exchanged. Join tokens and client certificates that were made before are void; %s is renewed, copies of it are not", path)
		}
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), text)
	return err
}
