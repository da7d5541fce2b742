package operators

import (
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/page"
	"github.com/barque/barque/adminapi/remote/pages"
	"github.com/barque/barque/adminapi/remote/users"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/exitcode"
)

// UICommand is `barque ui`.
func UICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print a link that opens the cluster's page in a browser",
		Long: `Print a link that opens the page of the cluster: its health, Raft, gossip, nodes,
workloads, pods, changes, and an hour of metrics. Every server has the page at /ui.

The link is good once, and for a minute, at any server. It opens a session that reads the
cluster with the rights of the kubeconfig's user, for 12 hours at most, and changes
nothing. The session ends with the user's certificate, as by 'barque user revoke'.`,
		Example: `  barque ui
  barque ui --server https://10.0.0.5:6443 --open
  barque ui ls
  barque ui end --user ann`,
		Args: command.NoArgs,
	}
	flags := cmd.Flags()
	server := flags.String("server", "",
		"server of the link, https://HOST:PORT (default: that of the kubeconfig)")
	open := flags.Bool("open", false, "open the link in this machine's browser, by xdg-open")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		cluster, err := users.ClusterOf(config, *server)
		if err != nil {
			return command.Usage(c, err)
		}
		link, err := pages.Link(c.Context(), config)
		if err != nil {
			return err
		}
		url := pages.URL(cluster.Server, link)
		tell := func(format string, args ...any) { fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }
		tell("for user %s, once, until %s:", link.User, link.Expires.Local().Format(time.TimeOnly))
		if cluster.IsLocal() && len(link.Servers) > 0 {
			tell("the link leads to this machine: for another one's browser give --server, such as %s",
				link.Servers[0].URL)
		}
		if *open {
			if err := exec.CommandContext(c.Context(), "xdg-open", url).Run(); err != nil {
				tell("xdg-open does not open it (%v): open it yourself", err)
			}
		}
		return command.Print(c, *format, made{url, link}, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, url)
			return err
		})
	}
	cmd.AddCommand(uiListCommand(), uiEndCommand())
	return cmd
}

// made is the output of `barque ui`.
type made struct {
	URL string `json:"url"`
	page.Link
}

func uiListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the open sessions of the page",
		Args: command.NoArgs}
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		all, err := pages.Sessions(c.Context(), config)
		if err != nil {
			return err
		}
		return command.Print(c, *format, all, func(w io.Writer) error { return writeSessions(w, all) })
	}
	return cmd
}

func uiEndCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end [ID]",
		Short: "End a session of the page, or all of a user",
		Long: `End the session whose ID begins so, or all sessions of a user. Its requests are refused
at once, and its open watches end within a minute. The user may open another session:
'barque user revoke' ends the certificate itself.`,
		Example: "  barque ui end 3f2a91c0\n  barque ui end --user ann",
		Args:    cobra.MaximumNArgs(1),
	}
	user := cmd.Flags().String("user", "", "end all sessions of this user")
	format, kubeconfig := command.OutputFlag(cmd), command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if err := command.CheckFormat(c, *format); err != nil {
			return err
		}
		if (len(args) == 1) == (*user != "") {
			return command.Usage(c, fmt.Errorf("give the ID of a session, which 'barque ui ls' shows, or --user"))
		}
		id := ""
		if len(args) == 1 {
			id = args[0]
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		ended, err := pages.End(c.Context(), config, id, *user)
		if err != nil {
			return err
		}
		err = command.Print(c, *format, ended, func(w io.Writer) error { return writeSessions(w, ended) })
		if err != nil {
			return err
		}
		if len(ended) == 0 {
			return &exitcode.Error{Code: 1, Err: fmt.Errorf("no session matches; 'barque ui ls' lists them")}
		}
		return nil
	}
	return cmd
}

// writeSessions writes a table.
func writeSessions(w io.Writer, all []page.Session) error {
	fmt.Fprintln(w, "ID\tUSER\tOPENED\tENDS")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.ID, s.User, s.Created.Format(time.RFC3339), s.Expires.Format(time.RFC3339))
	}
	return nil
}
