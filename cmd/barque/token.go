package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make, list and delete the tokens that let machines join"}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenDeleteCommand())
	return cmd
}

func tokenCreateCommand() *cobra.Command {
	var spec token.Spec
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a join token and print it",
		Long: `Make a join token and print it. The token pins the cluster's CA, so the machine
that joins with it knows that it talks to the right cluster.`,
		Args: noArgs,
	}
	cmd.Flags().StringVar(&spec.Role, "role", token.Agent, "what the machine may join as: server or agent")
	cmd.Flags().DurationVar(&spec.TTL, "ttl", 24*time.Hour, "how long the token is good; 0 is for ever")
	cmd.Flags().IntVar(&spec.Uses, "uses", 0, "how many machines may join with it; 0 is any number")
	cmd.Flags().StringVar(&spec.Description, "description", "", "what it is for")
	kubeconfig := kubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		client, config, err := newClient(*kubeconfig)
		if err != nil {
			return err
		}
		ca, err := pki.ParseAuthority(config.CAData, nil)
		if err != nil {
			return fmt.Errorf("the kubeconfig's CA: %w", err)
		}
		t, err := token.Create(c.Context(), client, ca.Digest(), spec, time.Now())
		if err != nil {
			return withRights(config, err)
		}
		_, err = fmt.Fprintln(c.OutOrStdout(), t)
		return err
	}
	return cmd
}

func tokenListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the join tokens, without their secrets", Args: noArgs}
	format, kubeconfig := outputFlag(cmd), kubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := checkFormat(c, *format); err != nil {
			return err
		}
		client, config, err := newClient(*kubeconfig)
		if err != nil {
			return err
		}
		tokens, err := token.List(c.Context(), client)
		if err != nil {
			return withRights(config, err)
		}
		return print(c, *format, tokens, func(w io.Writer) error {
			fmt.Fprintln(w, "ID\tROLE\tEXPIRES\tUSES LEFT\tDESCRIPTION")
			for _, t := range tokens {
				expires, uses := "never", "any"
				if !t.Expires.IsZero() {
					expires = t.Expires.Format(time.RFC3339)
				}
				if t.Limited {
					uses = fmt.Sprint(t.UsesLeft)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, t.Role, expires, uses, t.Description)
			}
			return nil
		})
	}
	return cmd
}

func tokenDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "delete ID", Short: "Delete a join token", Args: exactArgs("ID")}
	kubeconfig := kubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		client, config, err := newClient(*kubeconfig)
		if err != nil {
			return err
		}
		return withRights(config, token.Delete(c.Context(), client, args[0]))
	}
	return cmd
}
