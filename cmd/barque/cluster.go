package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cmd/barque/node"
)

func clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the cluster and change its members"}
	status := &cobra.Command{Use: "status", Short: "Show who leads, who lags and who is ill", Args: noArgs}
	format, kubeconfig := outputFlag(status), kubeconfigFlag(status)
	status.RunE = func(c *cobra.Command, _ []string) error {
		s, err := clusterStatus(c.Context(), *kubeconfig)
		if err != nil {
			return err
		}
		return print(c, *format, s, func(w io.Writer) error { return writeStatus(w, s) })
	}
	members := &cobra.Command{Use: "members", Short: "List all nodes as gossip and the store know them", Args: noArgs}
	membersFormat, membersConfig := outputFlag(members), kubeconfigFlag(members)
	members.RunE = func(c *cobra.Command, _ []string) error {
		s, err := clusterStatus(c.Context(), *membersConfig)
		if err != nil {
			return err
		}
		return print(c, *membersFormat, s.Members, func(w io.Writer) error { return writeMembers(w, s.Members) })
	}
	cmd.AddCommand(status, members, clusterLeaveCommand(), clusterRemoveCommand(), clusterPromoteCommand(), clusterDemoteCommand(), clusterTransferCommand(), clusterRecoverCommand(), clusterKeysCommand())
	return cmd
}

func clusterStatus(ctx context.Context, kubeconfig string) (*node.ClusterStatus, error) {
	return fetchStatus(ctx, kubeconfig)
}

func fetchStatus(ctx context.Context, kubeconfig string) (*node.ClusterStatus, error) {
	config, err := clientConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	data, err := client.Discovery().RESTClient().Get().AbsPath(node.StatusPath).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s for the cluster's status: %w", config.Host, said(data, err))
	}
	s := new(node.ClusterStatus)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("status from %s: %w", config.Host, err)
	}
	return s, nil
}

func writeStatus(w io.Writer, s *node.ClusterStatus) error {
	leader := s.Leader
	if leader == "" {
		leader = "none: the store has no quorum"
	}
	fmt.Fprintf(w, "cluster\t%s\nleader\t%s\nterm\t%d\nrevision\t%d\n", s.ID, leader, s.Term, s.Revision)
	for _, warning := range s.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", warning)
	}
	fmt.Fprintln(w)
	return writeMembers(w, s.Members)
}

func writeMembers(w io.Writer, members []node.MemberStatus) error {
	fmt.Fprintln(w, "NAME\tROLE\tADDRESS\tGOSSIP\tSTORE\tTERM\tAPPLIED\tREVISION\tLAST CONTACT\tDISK p50/p99\tVERSION")
	for _, m := range members {
		if m.Store == nil {
			// Why it does not answer is among the warnings of `cluster status`.
			store := "-"
			if m.Problem != "" {
				store = "no answer"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t-\t-\t-\t-\t-\t%s\n", m.Name, m.Role, m.Address, m.Gossip, store, m.Version)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s/%s\t%s\n", m.Name, m.Role, m.Address, m.Gossip, m.Store.State, m.Store.Term, m.Store.Applied,
			m.Store.Revision, m.Store.LastContact, m.Store.DiskP50, m.Store.DiskP99, m.Version)
	}
	return nil
}
