package operators

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/adminapi/remote/users"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/revocations"
)

// UserCommand is `barque user`.
func UserCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Give people certificates of their own, list and revoke these"}
	cmd.AddCommand(userAddCommand(), revocations.UserListCommand(), revocations.UserRevokeCommand())
	return cmd
}

func userAddCommand() *cobra.Command {
	order := users.Order{}
	var server, merge string
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a certificate for a user, and print a kubeconfig with it",
		Long: `Make a certificate for a user, and print a kubeconfig with it, or merge it into a file. The
key is made on this machine; the cluster does not have it. The certificate cannot be
renewed by its owner: it ends after --ttl, and another one is made. 'barque user revoke'
ends it at once.

The user has the rights that roles give to the name or to its groups. The group
barque:admins has all rights, by the ClusterRoleBinding of that name. Its members need no
admin.kubeconfig, whose group system:masters cannot be taken from anybody.`,
		Example: `  barque user add ann --group dev > ann.kubeconfig
  barque user add root@laptop --group barque:admins --ttl 8h --server https://10.0.0.5:6443 --merge ~/.kube/config
  barque kubectl create rolebinding dev --clusterrole edit --group dev -n shop`,
		Args: command.ExactArgs("NAME"),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&order.Groups, "group", nil, "group of the user; may be repeated")
	flags.DurationVar(&order.TTL, "ttl", users.DefaultTTL, "how long the certificate is good, 10m at least")
	flags.StringVar(&server, "server", "",
		"address of the API in the user's kubeconfig, https://HOST:PORT (default: that of the administrator's)")
	flags.StringVar(&merge, "merge", "", "kubeconfig file to merge the user into, in place of printing")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		order.Name = args[0]
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if err := command.Usage(c, order.Check()); err != nil {
			return err
		}
		client, config, err := command.NewClient(*kubeconfig)
		if err != nil {
			return err
		}
		cluster, err := users.ClusterOf(config, server)
		if err != nil {
			return command.Usage(c, err)
		}
		if err := (&remote.CAExchange{Certs: certs(*kubeconfig)}).CheckNewUser(c.Context()); err != nil {
			return err
		}
		made, err := users.Add(c.Context(), client, order)
		if err != nil {
			return remote.WithAdvice(config, remote.WithoutLeader(err))
		}
		tell := func(format string, args ...any) { fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }
		tell("user %s has a certificate until %s", made.Name, made.Expires.UTC().Format(time.RFC3339))
		if cluster.IsLocal() {
			tell("the kubeconfig leads to %s, which is this machine only: give --server for others", cluster.Server)
		}
		if merge != "" {
			context, err := made.Merge(merge, cluster)
			if err != nil {
				return err
			}
			return command.Print(c, *format, made.Info, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s has the context %s; kubectl config use-context %s\n", merge, context,
					context)
				return err
			})
		}
		return command.Print(c, *format, made, func(w io.Writer) error {
			data, err := made.Kubeconfig(cluster)
			if err != nil {
				return err
			}
			_, err = w.Write(data)
			return err
		})
	}
	return cmd
}
