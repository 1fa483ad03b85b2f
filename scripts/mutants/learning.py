"""Of learning: the update, rollouts, evaluation, environments and rewards."""

from mutants.mutant import mutant

_UPDATE = "simic/agent/test_update.py::"
_METRICS = "simic/agent/test_update_metrics.py::"
_PPO = "simic/agent/test_ppo.py::"
_LOOP = "simic/test_gymnasium_loop.py::"
_SAME_STEPS = f"{_UPDATE}test_actor_entropy_and_kl_are_means_over_the_same_unforced_steps"
_RATIOS = f"{_METRICS}test_ratios_are_those_of_all_choices_in_all_finite_minibatches"
_CRASH = (
    "simic/test_evaluation.py::test_a_crash_counts_as_the_worst_score_in_selection_and_on_what_is_held_out"
)
_ACCOUNTS = "simic/env/test_accounts.py::"
_SHOWN = "simic/env/test_halves.py::"
_QUANTITIES = "tolaria/engine/test_objective.py::"

LEARNING = (
    # The update
    mutant(
        "actor_over_all_steps",
        "simic/agent/update.py",
        "policy_loss = mean_over(surrogate, trained)",
        "policy_loss = surrogate.mean()",
        _SAME_STEPS,
    ),
    mutant(
        "entropy_over_all_steps",
        "simic/agent/update.py",
        "policy_loss - mean_over(bonus, trained)",
        "policy_loss - bonus.mean()",
        _SAME_STEPS,
    ),
    mutant(
        "kl_over_all_steps",
        "simic/agent/update.py",
        "kl = mean_over(k3(joint_log_ratio(evaluation.log_prob, batch.log_prob)), trained)",
        "kl = k3(joint_log_ratio(evaluation.log_prob, batch.log_prob)).mean()",
        _SAME_STEPS,
    ),
    mutant(
        "advantages_normalised_over_all_steps",
        "simic/agent/update.py",
        "mean, std = masked_mean_std(rollout.advantage, trained)",
        "mean, std = masked_mean_std(rollout.advantage, torch.ones_like(trained))",
        f"{_UPDATE}test_advantages_are_normalised_over_the_steps_that_train_the_actor",
    ),
    mutant(
        "floor_by_the_largest_head",
        "simic/agent/update.py",
        "head_sizes=torch.tensor(layout.sizes)",
        "head_sizes=torch.tensor([max(layout.sizes)] * layout.head_count)",
        f"{_UPDATE}test_the_adaptive_floor_of_a_head_is_by_its_own_choices",
    ),
    mutant(
        "no_entropy_is_the_floor",
        "simic/agent/losses.py",
        "return torch.where(start > 0.0, torch.maximum(start - (start - floor) * progress, floor), 0.0)",
        "return torch.maximum(start - (start - floor) * progress, floor)",
        "simic/agent/test_entropy_and_values.py::test_a_coefficient_of_zero_is_no_bonus_whatever_the_floor",
    ),
    mutant(
        "clipped_without_a_choice",
        "simic/agent/update_metrics.py",
        "clipped = ((ratio - 1.0).abs() > clip_ratio) & chosen",
        "clipped = (ratio - 1.0).abs() > clip_ratio",
        _RATIOS,
    ),
    mutant(
        "clipped_from_above_only",
        "simic/agent/update_metrics.py",
        "((ratio - 1.0).abs() > clip_ratio)",
        "(ratio - 1.0 > clip_ratio)",
        _RATIOS,
    ),
    mutant(
        "largest_ratio_of_the_last_minibatch",
        "simic/agent/update_metrics.py",
        'ratio_max=max((table["ratio_max"][n] for n in finite), default=None)',
        'ratio_max=last("ratio_max")',
        _RATIOS,
    ),
    mutant(
        "shared_gradients_booked_to_a_head",
        "simic/agent/update_metrics.py",
        "heads.get(id(parameter), self.head_count)",
        "heads.get(id(parameter), 0)",
        f"{_METRICS}test_a_head_is_given_the_gradient_of_its_own_parameters_alone",
    ),
    # The rollout and its statistics
    mutant(
        "reward_statistics_of_invalid_steps",
        "simic/agent/ppo.py",
        "self.reward_normalizer.update(reward, self._valid())",
        "self.reward_normalizer.update(reward)",
        f"{_PPO}test_invalid_steps_are_in_no_statistics",
    ),
    mutant(
        "observation_statistics_of_invalid_steps",
        "simic/agent/ppo.py",
        "self.observation_stats.update(self._raw_observations.flatten(0, 1), self._valid().flatten())",
        "self.observation_stats.update(self._raw_observations.flatten(0, 1))",
        f"{_PPO}test_invalid_steps_are_in_no_statistics",
    ),
    mutant(
        "bits_normalised",
        "simic/agent/normalization.py",
        "return torch.where(self.fixed, x, ((x - self.mean.float()) * scale).clamp_(-clip, clip))",
        "return ((x - self.mean.float()) * scale).clamp_(-clip, clip)",
        f"{_PPO}test_normalised_observations_keep_their_bits",
    ),
    *(
        mutant(
            f"{feature}_normalised",
            "tamiyo/features.py",
            f'        "{feature}",\n        "{following}",\n',
            f'        "{following}",\n',
            "tamiyo/test_observation_layout.py::test_bits_shares_and_places_have_a_fixed_scale",
        )
        for feature, following in (("present", "fading"), ("offered", "time_left"), ("width", "depth"))
    ),
    mutant(
        "rewards_clipped",
        "simic/agent/normalization.py",
        "return (rewards.to(torch.float64) / self.std).float()",
        "return (rewards.to(torch.float64) / self.std).float().clamp_(-10.0, 10.0)",
        "simic/agent/test_normalization_and_anomaly.py::test_rewards_are_scaled_neither_centred_nor_clipped",
    ),
    mutant(
        "lost_episodes_as_true_ends",
        "simic/agent/rollout_buffer.py",
        "terminated = self.terminated.reshape(-1)[kept]",
        "terminated = (self.terminated | cut_short).reshape(-1)[kept]",
        f"{_PPO}test_an_end_in_an_invalid_step_does_not_join_two_episodes",
    ),
    mutant(
        "lost_steps_trained_on",
        "simic/gymnasium_loop.py",
        "valid=~lost if lost.any() else None",
        "valid=None",
        "simic/test_lost_workers.py::"
        "test_what_was_seen_before_a_worker_died_bootstraps_and_the_others_do_not_notice",
    ),
    mutant(
        "truncation_bootstraps_from_the_next_episode",
        "simic/gymnasium_loop.py",
        'final[env_idx] = info["final_obs"][env_idx]',
        "pass",
        f"{_LOOP}test_a_truncated_episode_bootstraps_from_the_state_it_was_stopped_in",
    ),
    # Evaluation
    mutant(
        "memory_kept_between_evaluated_episodes",
        "simic/gymnasium_loop.py",
        "        actor.reset(torch.from_numpy(ended))\n",
        "",
        f"{_LOOP}test_evaluation_begins_every_episode_without_memory",
    ),
    mutant(
        "memory_kept_between_judged_cases",
        "simic/evaluation.py",
        "        self._actor = self._make(num_envs)",
        "        if self._actor.num_envs != num_envs:\n            self._actor = self._make(num_envs)",
        "simic/test_evaluation.py::test_a_network_begins_every_episode_without_memory",
    ),
    mutant(
        "no_reward_for_the_player",
        "simic/evaluation.py",
        "rewards = result.shown_rewards",
        "rewards = np.zeros(episodes.num_envs)",
        "simic/test_evaluation.py::test_a_player_is_shown_the_reward_of_its_last_step",
    ),
    mutant(
        "no_reward_for_the_network",
        "simic/evaluation.py",
        "reward=torch.from_numpy(rewards).float()",
        "reward=torch.zeros(len(rewards))",
        "simic/test_evaluation.py::test_a_player_is_shown_the_reward_of_its_last_step",
    ),
    mutant(
        "selection_by_training_hosts",
        "simic/building.py",
        "TRAINING_HOSTS + index",
        "index",
        "simic/env/test_pool.py::test_hosts_that_select_and_judge_are_never_trained_on",
    ),
    mutant(
        "crashes_left_out_of_selection",
        "simic/env/episodes.py",
        "gain = self.accounts.gain_of_condemned(env_idx)",
        "pass",
        _CRASH,
    ),
    mutant(
        "crash_worth_nothing_on_what_is_held_out",
        "simic/evaluation.py",
        "return [worst if episode.utility is None else episode.utility for episode in played]",
        "return [episode.utility or 0.0 for episode in played]",
        _CRASH,
    ),
    mutant(
        "known_baselines_end_as_they_began",
        "benchmark/playing.py",
        "*row.validation_accuracies[-1:] * missing",
        "*row.validation_accuracies[:1] * missing",
        "benchmark/test_playing.py::test_waiting_is_the_control_curve",
    ),
    # Environments and rewards
    mutant(
        "one_host_seed_for_all_cases",
        "simic/env/cases.py",
        "return (place * self.host_seeds + number) % TRAINING_HOSTS",
        "return number % TRAINING_HOSTS",
        "simic/env/test_pool.py::test_every_case_of_a_preset_trains_a_host_of_its_own",
    ),
    mutant(
        "every_host_seed_before_the_next_case",
        "simic/env/cases.py",
        "        for number in range(self.host_seeds):\n            for place in places:\n",
        "        for place in places:\n            for number in range(self.host_seeds):\n",
        "simic/env/test_pool.py::test_every_pair_once",
    ),
    mutant(
        "crash_costs_one_whatever_the_scores",
        "simic/reward.py",
        "-config.rollback_penalty * (best - worst)",
        "-config.rollback_penalty",
        "simic/rewards/test_lives.py::test_losing_the_host_does_not_pay_where_it_would_most",
    ),
    mutant(
        "crash_spares_the_rent",
        "simic/reward.py",
        "np.where(lost, largest, rent)",
        "np.where(lost, 0.0, rent)",
        "simic/rewards/test_lives.py::test_losing_the_host_does_not_pay_where_it_would_most",
    ),
    mutant(
        "actor_sees_the_baseline",
        "simic/env/episodes.py",
        "shown_rewards=self.accounts.shown.copy()",
        "shown_rewards=components.total",
        f"{_ACCOUNTS}test_nothing_that_the_actor_sees_depends_on_the_baseline",
    ),
    mutant(
        "reward_by_the_observed_half",
        "simic/env/accounts.py",
        "(loss, accuracy), baseline = host.report.judged, self._baselines[env_idx]",
        "loss, accuracy = host.report.validation_loss, host.report.validation_accuracy\n"
        "        baseline = self._baselines[env_idx]",
        "simic/env/test_engine.py::test_waiting_earns_exactly_nothing",
    ),
    mutant(
        "shown_the_judged_half",
        "simic/env/accounts.py",
        "score = report.validation_accuracy\n",
        "score = report.judged[1]\n",
        f"{_SHOWN}test_no_reward_that_is_shown_depends_on_the_judged_half",
    ),
    mutant(
        "shown_by_the_judged_untrained_loss",
        "simic/env/accounts.py",
        "score_by_loss(report.validation_loss, self._untrained_observed_loss[env_idx])",
        "score_by_loss(report.validation_loss, self._untrained_loss[env_idx])",
        f"{_ACCOUNTS}test_a_loss_is_shown_over_the_observed_untrained_one_and_no_worse_than_the_worst",
    ),
    mutant(
        "observed_accuracy_of_the_judged_half",
        "simic/env/episodes.py",
        "observed_accuracy=report.validation_accuracy if kept else None",
        "observed_accuracy=report.judged[1] if kept else None",
        f"{_SHOWN}test_a_finished_episode_reports_both_halves",
    ),
    mutant(
        "shown_the_reward_of_the_task",
        "simic/held_out.py",
        "setting.episodes(reward=reward, shown_reward=shown, decisions=retiring)",
        "setting.episodes(reward=reward, decisions=retiring)",
        "cli/test_grow.py::test_a_controller_is_shown_the_reward_of_its_card",
    ),
    mutant(
        "benchmarks_of_other_numerics_mixed",
        "benchmark/bench.py",
        "if old.numerics != new.numerics:",
        "if False:",
        "benchmark/test_runner.py::test_rows_of_other_numerics_are_not_mixed",
    ),
    mutant(
        "threads_not_in_the_name_of_a_curve",
        "tolaria/worlds/baselines.py",
        "parts.append(threads)",
        "pass",
        "tolaria/worlds/test_baselines.py::test_threads_are_in_the_name_where_they_are_in_the_numbers",
    ),
    # Quantities, schedules of rates, and networks that differ
    mutant(
        "explained_variance_below_zero",
        "tolaria/engine/step.py",
        ".nan_to_num(nan=0.0).clamp(min=0.0)",
        ".nan_to_num(nan=0.0)",
        f"{_QUANTITIES}test_scores_of_quantities_are_0_to_1",
    ),
    mutant(
        "overfitting_taken_for_collapse",
        "tolaria/worlds/engine.py",
        "validation_accuracy=None if host.data.source.regression else report.validation_accuracy",
        "validation_accuracy=report.validation_accuracy",
        f"{_QUANTITIES}test_a_host_that_explains_nothing_any_more_is_not_condemned_for_it",
    ),
    mutant(
        "a_rate_that_stays_through_an_epoch",
        "tolaria/engine/host.py",
        "(epoch + step / steps) / epochs",
        "epoch / epochs",
        "tolaria/engine/test_rates.py::test_a_life_is_what_a_loop_by_hand_does",
    ),
    mutant(
        "held_out_kinds_drawn_to_train_on",
        "tolaria/tasks/drawn.py",
        "return of_other_kind(parameters) or of_other_size(parameters) or in_corner(parameters)",
        "return of_other_size(parameters) or in_corner(parameters)",
        "tolaria/tasks/test_suites.py::test_the_frozen_hosts_have_samples_of_their_own_and_what_is_never_drawn",
    ),
    mutant(
        "one_host_of_each_instance_taken_for_certainty",
        "benchmark/table.py",
        "new_instances = new_instances or hosts == 1",
        "new_instances = new_instances",
        "benchmark/test_comparison.py::test_one_host_of_each_instance_is_not_taken_for_certainty",
    ),
)
