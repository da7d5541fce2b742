package operators

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
)

// AuditCommand is `barque audit`.
func AuditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who did what, from the audit logs of all servers",
		Long: `Show who did what, from the audit logs of all servers, in the order of time. Each
server searches its own log. The newest events are shown; a note names servers that have more.

If a server cannot be asked, the others' events are shown and the exit code is 1.
Only members of system:masters and barque:admins may read the logs.`,
		Example: `  barque audit --since 1h --verb delete
  barque audit --since 24h --resource secrets -n kube-system --user system:node:n1 -o json`,
		Args: command.NoArgs,
	}
	a, format := command.AddAskerFlags(cmd), command.OutputFlag(cmd)
	var q auditlog.Query
	flags := cmd.Flags()
	since := flags.Duration("since", time.Hour, "age of the oldest event")
	flags.StringVar(&q.User, "user", "", "only requests of this user, or as this user")
	flags.StringVar(&q.Verb, "verb", "", "only this verb, such as create, delete or post")
	flags.StringVar(&q.Resource, "resource", "", "only this resource, such as secrets, deployments.apps or pods/exec")
	flags.StringVarP(&q.Namespace, "namespace", "n", "", "only objects in this namespace")
	flags.StringVar(&q.Name, "name", "", "only objects of this name")
	flags.IntVar(&q.Limit, "limit", 1000, "how many of the newest events are shown")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if *format == "table" {
			*format = ""
		}
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if err := a.Check(c); err != nil {
			return err
		}
		if *since <= 0 || q.Limit < 1 || q.Limit > auditlog.MaxEvents {
			return command.Usage(c,
				fmt.Errorf("--since %s, --limit %d: want more than 0, and 1 to %d", *since, q.Limit,
					auditlog.MaxEvents))
		}
		if err := q.Check(); err != nil {
			return command.Usage(c, fmt.Errorf("--%w", err))
		}
		q.Since = time.Now().Add(-*since)
		heard, err := a.Ask(c.Context())
		if err != nil {
			return err
		}
		var servers []remote.AuditServer
		for _, m := range heard.Status().Servers() {
			servers = append(servers, remote.AuditServer{Name: m.Name, Hosts: heard.Hosts(m)})
		}
		events := remote.Audit(c.Context(), heard.Config, servers, q)
		if err := command.Print(c, *format, events, events.Write); err != nil {
			return err
		}
		if len(events.Events) == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "No event of the last %s matches; resources are named as %q, %q or %q.\n",
				*since, "secrets", "deployments.apps", "pods/exec")
		}
		for server, why := range events.Left {
			fmt.Fprintf(c.ErrOrStderr(), "server %s: %s\n", server, why)
		}
		return events.Err()
	}
	return cmd
}
