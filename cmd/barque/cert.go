package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

func certCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cert", Short: "Show and renew the cluster's certificates", Args: noArgs}
	cmd.AddCommand(certShowCommand(), certRotateCommand())
	return cmd
}

func certShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show all certificates of the cluster and when they end",
		Long: `Show all certificates of the cluster and when they end. Each node renews its own when
about two thirds of their life are over; a warning tells when one did not. Of an agent
that is not there its credential for gossip is shown, which it gets together with its
certificates. While the CA is exchanged it says how far that is, and how to go on.`,
		Args: noArgs,
	}
	format, kubeconfig := outputFlag(cmd), kubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		var all adminapi.ClusterCertificates
		if err := certCall(c.Context(), *kubeconfig, http.MethodGet, adminapi.CertificatesPath, nil, &all); err != nil {
			return err
		}
		return print(c, *format, all, func(w io.Writer) error { return writeCertificates(w, &all) })
	}
	return cmd
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", where, c.Name, c.Subject, c.Issuer, c.NotAfter.UTC().Format(time.RFC3339), leftText(c.SecondsLeft), file)
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

// leftText is a time that is left, as people say it.
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

// certRotate is what `barque cert rotate` was asked for.
type certRotate struct {
	kubeconfig, server         string
	ca, undo, force, yes, wait bool
}

func certRotateCommand() *cobra.Command {
	var o certRotate
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Renew certificates now, or exchange the cluster's CA",
		Long: `Renew the certificates of all servers now, or of one. They renew themselves in time.
Their keys are new, too. The old certificates hold until they end. Nothing is restarted.

With --ca the cluster's CA is exchanged for a new one, while everything runs: the new CA
is made known to all nodes, then all certificates are issued anew by it, then the old CA
is dropped. Each step waits until every node has done the last one; what is interrupted
goes on by itself, whoever leads. The key that signs the tokens of service accounts is
exchanged with it; the old one verifies for two days yet, in which kubelets replace the
tokens of pods. Afterwards client certificates of the old CA are void,
those in kubeconfigs that were copied before among them, and so are join tokens. Who
only verifies the servers by the old CA goes on to believe them.`,
		Example: `  barque cert rotate --server s2
  barque cert rotate --ca --yes
  barque cert rotate --ca --undo     # as long as the new CA has issued nothing
  barque cert rotate --ca --force    # do not wait for nodes that show no life`,
		Args: noArgs,
	}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster's administrator (default: $KUBECONFIG, .barque/kubeconfig, or the one of the server on this machine)")
	cmd.Flags().StringVar(&o.server, "server", "", "renew the certificates of this server only")
	cmd.Flags().BoolVar(&o.ca, "ca", false, "exchange the cluster's CA for a new one")
	cmd.Flags().BoolVar(&o.undo, "undo", false, "with --ca: give up an exchange whose new CA has issued nothing yet")
	cmd.Flags().BoolVar(&o.force, "force", false, "with --ca: let an exchange that is under way not wait for nodes that show no life; they must join again")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "with --ca: do not ask")
	cmd.Flags().BoolVar(&o.wait, "wait", true, "with --ca: wait until the exchange is done")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		wrong := func(text string) error { return &usageError{c.CommandPath(), errors.New(text)} }
		switch {
		case (o.undo || o.force) && !o.ca:
			return wrong("--undo and --force are for the exchange of the CA: give --ca, too")
		case o.undo && o.force:
			return wrong("--undo and --force contradict each other: give one of them")
		case c.Flags().Changed("wait") && !o.ca:
			return wrong("--wait is for the exchange of the CA: give --ca, too")
		case o.ca && o.server != "":
			return wrong("--server renews the certificates of one server, --ca exchanges the CA of all: give one of them")
		case o.ca:
			return o.exchange(c)
		}
		return o.leaves(c)
	}
	return cmd
}

// leaves renews the certificates of servers, one after the other.
func (o *certRotate) leaves(c *cobra.Command) error {
	var all adminapi.ClusterCertificates
	if err := certCall(c.Context(), o.kubeconfig, http.MethodGet, adminapi.CertificatesPath, nil, &all); err != nil {
		return err
	}
	var renewed, failed []string
	found, lost := false, false
	for _, n := range all.Nodes {
		if o.server != "" && n.Node != o.server || o.server == "" && n.Role != "server" {
			continue
		}
		found = true
		if n.Role != "server" {
			return &exitcode.Error{Code: node.ExitUsage, Err: fmt.Errorf("%s is an agent: it gets new certificates from the servers by itself, in time and after an exchange of the CA", n.Node)}
		}
		var is credentials.NodeCertificates
		err := certCall(c.Context(), o.kubeconfig, http.MethodPost, adminapi.CertificatesPath, map[string]string{"of": n.Node}, &is)
		if c.Context().Err() != nil {
			return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("interrupted: %s; whether %s has, `barque cert show` tells. Renewing again does no harm", haveNew(renewed), n.Node)}
		}
		if err != nil {
			fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", n.Node, err)
			failed, lost = append(failed, n.Node), lost || remote.OutcomeLost(err)
			continue
		}
		renewed = append(renewed, n.Node)
		fmt.Fprintf(c.OutOrStdout(), "%s has new certificates\n", n.Node)
	}
	switch {
	case !found:
		return &exitcode.Error{Code: node.ExitUsage, Err: fmt.Errorf("there is no server %q; `barque cluster members` lists them", o.server)}
	case lost:
		return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("not all have told that they have new certificates: %s; `barque cert show` tells who has. Renewing again does no harm", strings.Join(failed, ", "))}
	case len(failed) > 0:
		return fmt.Errorf("the certificates of %s were not renewed", strings.Join(failed, ", "))
	}
	return nil
}

func haveNew(servers []string) string {
	if len(servers) == 0 {
		return "nobody is known to have new certificates"
	}
	return strings.Join(servers, ", ") + " have new certificates"
}

// exchange begins, undoes or forces the exchange of the CA, or waits for one that is under way.
func (o *certRotate) exchange(c *cobra.Command) error {
	var is exchange.Status
	if err := certCall(c.Context(), o.kubeconfig, http.MethodGet, adminapi.CAPath, nil, &is); err != nil {
		return err
	}
	change := exchange.Begin
	text := "The cluster's CA is exchanged for a new one. All nodes get new certificates; nothing is restarted. Then join tokens\n" +
		"and client certificates that were made before are void, those in copied kubeconfigs among them.\n"
	switch {
	case (o.undo || o.force) && is.Step == pki.Settled:
		return &exitcode.Error{Code: exitcode.Refused, Err: errors.New("nothing was changed: no exchange of the CA is under way")}
	case o.undo:
		change, text = exchange.Undo, "The exchange of the CA is given up. The old CA stays, the new one is dropped.\n"
	case o.force:
		change, text = exchange.Force, "The exchange of the CA waits no more for nodes that show no life. They must join again when they come back:\n"+
			"agents with --rejoin and a new token, servers with --wipe --replace --join and a new token.\n"
		for _, who := range is.Waiting {
			text += "  " + who + "\n"
		}
	case is.Step != pki.Settled:
		fmt.Fprintf(c.ErrOrStderr(), "An exchange of the CA is under way since %s.\n", is.Since.UTC().Format(time.RFC3339))
		return o.await(c, is)
	}
	if !o.yes {
		fmt.Fprint(c.ErrOrStderr(), text+"Go on? [y/N] ")
		if err := confirmed(c); err != nil {
			return err
		}
	}
	if err := o.change(c, change, &is); err != nil {
		return err
	}
	if change == exchange.Undo {
		_, err := fmt.Fprintln(c.OutOrStdout(), "the exchange of the CA was given up")
		return err
	}
	return o.await(c, is)
}

// change asks for the change of the exchange.
func (o *certRotate) change(c *cobra.Command, change exchange.Change, is *exchange.Status) error {
	err := certCall(c.Context(), o.kubeconfig, http.MethodPost, adminapi.CAPath, map[string]string{"change": string(change)}, is)
	switch {
	case err == nil:
		return nil
	case remote.OutcomeLost(err):
		return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("whether that was done is not known: %w; `barque cert show` tells", err)}
	case remote.StatusOf(err) == http.StatusConflict:
		return &exitcode.Error{Code: exitcode.Refused, Err: err}
	}
	return remote.Unchanged(err)
}

// await tells how the exchange goes on until it is done.
func (o *certRotate) await(c *cobra.Command, is exchange.Status) error {
	kubeconfig := devKubeconfigOf(o.kubeconfig)
	if !o.wait {
		_, err := fmt.Fprintln(c.OutOrStdout(), "the exchange of the CA is under way; `barque cert show` tells how far it is"+kubeconfig.afterwards())
		return err
	}
	said, before := "", is
	for is.Step != pki.Settled {
		if text := stepText(is); text != said {
			fmt.Fprintln(c.ErrOrStderr(), text)
			said = text
		}
		select {
		case <-c.Context().Done():
			return unfinishedExchange(kubeconfig)
		case <-time.After(time.Second):
		}
		var now exchange.Status
		// The kubeconfig is read anew each time: servers renew theirs.
		err := certCall(c.Context(), o.kubeconfig, http.MethodGet, adminapi.CAPath, nil, &now)
		switch {
		case err == nil:
			before, is = is, now
		case apierrors.IsUnauthorized(err) && kubeconfig.renew(c):
			// The kubeconfig is a new one now.
		case apierrors.IsUnauthorized(err) && is.Step == pki.Spreading:
			return &exitcode.Error{Code: exitcode.Unfinished, Err: fmt.Errorf("this kubeconfig is not accepted any more, so it is not known how far the exchange of the CA is: take admin.kubeconfig from the data directory of a server: %w", err)}
		case apierrors.IsUnauthorized(err):
			_, err := fmt.Fprintln(c.OutOrStdout(), "the CA is exchanged. This kubeconfig has a client certificate of the old one, which is void now: take admin.kubeconfig from the data directory of a server")
			return err
		case c.Context().Err() != nil:
			return unfinishedExchange(kubeconfig)
		default:
			fmt.Fprintf(c.ErrOrStderr(), "the servers cannot be asked just now: %v\n", err)
		}
	}
	if before.Step == pki.Spreading && is.Issuer == before.Issuer {
		return errors.New("the exchange of the CA was given up meanwhile: the old CA stays")
	}
	if kubeconfig.renew(c); kubeconfig.renewed {
		_, err := fmt.Fprintf(c.OutOrStdout(), "the CA is exchanged. Join tokens and client certificates that were made before are void; %s is renewed, copies of it are not\n", devcluster.FromHere(kubeconfig.plan.Kubeconfig()))
		return err
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), "the CA is exchanged. Join tokens and client certificates that were made before are void; take new kubeconfigs from the data directories of servers (admin.kubeconfig)")
	return err
}

func unfinishedExchange(kubeconfig *devKubeconfig) error {
	return &exitcode.Error{Code: exitcode.Unfinished, Err: errors.New("the exchange of the CA goes on; `barque cert show` tells how far it is, and `barque cert rotate --ca` waits for it" + kubeconfig.afterwards())}
}

func stepText(is exchange.Status) string {
	text := clusterstatus.ExchangeText(&is)
	if is.Problem != "" {
		text += "; " + is.Problem
	}
	return text
}

// certCall asks the server of the kubeconfig, which is read anew each time, for JSON.
func certCall(ctx context.Context, kubeconfig, method, path string, params map[string]string, out any) error {
	config, err := clientConfig(kubeconfig)
	if err != nil {
		return err
	}
	return remote.Certificates(ctx, config, method, path, params, out)
}
