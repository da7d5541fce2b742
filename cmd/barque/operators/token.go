package operators

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// TokenCommand is `barque token`.
func TokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make, list and delete the tokens that let machines join"}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenDeleteCommand())
	return cmd
}

func tokenCreateCommand() *cobra.Command {
	var spec token.Spec
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a join token and print it",
		Long: `Make a join token and print it, once: the cluster does not keep it. The token pins the
cluster's CA: a machine that joins with it verifies that it talks to the right cluster.

A server gets the cluster's keys. So a token for a server lets one machine in, and is good
for an hour, unless the flags say otherwise. One for agents is good for a day, and for any
number of machines.`,
		Args: command.NoArgs,
	}
	cmd.Flags().StringVar(&spec.Role, "role", token.Agent, "role that the machine may join in: server or agent")
	cmd.Flags().DurationVar(&spec.TTL, "ttl", 0,
		"how long the token is good, a minute at least; 0 is for ever (default 24h, or 1h for a server)")
	cmd.Flags().IntVar(&spec.Uses, "uses", 0,
		"how many machines may join with it; 0 is any number (default 0, or 1 for a server)")
	cmd.Flags().StringVar(&spec.Description, "description", "", "what it is for")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		spec := spec.WithDefaults(c.Flags().Changed("ttl"), c.Flags().Changed("uses"))
		if err := errors.Join(command.CheckFormat(c, *format), command.Usage(c, spec.Check())); err != nil {
			return err
		}
		client, config, err := command.NewClient(*kubeconfig)
		if err != nil {
			return err
		}
		var made token.Made
		err = remote.Ask(c.Context(), config, "store the join token", func(ctx context.Context) (err error) {
			made, err = token.Create(ctx, client.Discovery().RESTClient(), spec)
			return err
		})
		if err != nil {
			return remote.Outcome(err,
				"`barque token ls` shows whether it was created; delete that one, whose secret is lost, and make another")
		}
		return command.Print(c, *format, made, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, made.Token)
			return err
		})
	}
	return cmd
}

func tokenListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the join tokens, without their secrets",
		Args: command.NoArgs}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		client, config, err := command.NewClient(*kubeconfig)
		if err != nil {
			return err
		}
		var tokens []token.Info
		err = remote.Ask(c.Context(), config, "list the join tokens", func(ctx context.Context) (err error) {
			tokens, err = token.List(ctx, client.Discovery().RESTClient())
			return err
		})
		if err != nil {
			return err
		}
		ca, err := pki.ParseAuthority(config.CAData, nil)
		if err != nil {
			ca = nil // a kubeconfig may have the system's CAs; void tokens are not detected then
		}
		return command.Print(c, *format, tokens, func(w io.Writer) error {
			fmt.Fprintln(w, "ID\tROLE\tEXPIRES\tUSES LEFT\tMADE BY\tDESCRIPTION")
			for _, t := range tokens {
				expires, uses := "never", "any"
				if !t.Expires.IsZero() {
					expires = t.Expires.Format(time.RFC3339)
				}
				if ca != nil && t.CADigest != ca.Digest() {
					expires = "void: the CA was exchanged"
				}
				if t.Limited {
					uses = fmt.Sprint(t.UsesLeft)
				}
				by := cmp.Or(t.CreatedBy, "-")
				if t.Former {
					by = "an earlier version, in a Secret"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Role, expires, uses, by, t.Description)
			}
			return nil
		})
	}
	return cmd
}

func tokenDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "delete ID", Short: "Delete a join token", Args: command.ExactArgs("ID")}
	kubeconfig := command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		unknown := &exitcode.Error{Code: options.ExitUsage,
			Err: fmt.Errorf("there is no token %q; `barque token ls` lists the IDs", args[0])}
		if !token.IsID(args[0]) {
			return unknown
		}
		client, config, err := command.NewClient(*kubeconfig)
		if err != nil {
			return err
		}
		err = remote.Ask(c.Context(), config, "delete the join token",
			func(ctx context.Context) error { return token.Delete(ctx, client.Discovery().RESTClient(), args[0]) })
		switch {
		case errors.Is(err, token.ErrUnknown):
			return unknown
		case err != nil:
			return remote.Outcome(err, "`barque token ls` shows whether it is still there")
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "token %s is deleted\n", args[0])
		return err
	}
	return cmd
}
