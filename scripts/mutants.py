"""The breaks that `scripts/mutate.py` plants: each of a rule, with the tests that must notice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break."""

    name: str
    """What is broken."""
    file: str
    """Under `src/esper`."""
    text: str
    """What stands there, exactly once."""
    replacement: str
    tests: tuple[str, ...]
    """As pytest takes them, under `tests`; one that fails is enough."""


def _mutant(name: str, file: str, text: str, replacement: str, *tests: str) -> Mutant:
    return Mutant(name, file, text, replacement, tuple(f"tests/{test}" for test in tests))


_UPDATE = "simic/agent/test_update.py::"
_METRICS = "simic/agent/test_update_metrics.py::"
_PPO = "simic/agent/test_ppo.py::"
_LOOP = "simic/test_gymnasium_loop.py::"
_PREVIOUS = "tamiyo/test_policies.py::test_every_relevant_head_of_the_previous_action_is_seen"
_SAME_STEPS = f"{_UPDATE}test_actor_entropy_and_kl_are_means_over_the_same_unforced_steps"
_RATIOS = f"{_METRICS}test_ratios_are_those_of_all_choices_in_all_finite_minibatches"
_CRASH = (
    "simic/test_evaluation.py::test_a_crash_counts_as_the_worst_score_in_selection_and_on_what_is_held_out"
)
_ACCOUNTS = "simic/env/test_accounts.py::"
_SHOWN = "simic/env/test_halves.py::"
_BY_LAYOUT = "tamiyo/rules/test_by_layout.py::"
_PROCESSES = "grower/test_several_processes.py::"

MUTANTS = (
    # The update
    _mutant(
        "actor_over_all_steps",
        "simic/agent/update.py",
        "policy_loss = mean_over(surrogate, trained)",
        "policy_loss = surrogate.mean()",
        _SAME_STEPS,
    ),
    _mutant(
        "entropy_over_all_steps",
        "simic/agent/update.py",
        "policy_loss - mean_over(bonus, trained)",
        "policy_loss - bonus.mean()",
        _SAME_STEPS,
    ),
    _mutant(
        "kl_over_all_steps",
        "simic/agent/update.py",
        "kl = mean_over(k3(joint_log_ratio(evaluation.log_prob, batch.log_prob)), trained)",
        "kl = k3(joint_log_ratio(evaluation.log_prob, batch.log_prob)).mean()",
        _SAME_STEPS,
    ),
    _mutant(
        "advantages_normalised_over_all_steps",
        "simic/agent/update.py",
        "mean, std = masked_mean_std(rollout.advantage, trained)",
        "mean, std = masked_mean_std(rollout.advantage, torch.ones_like(trained))",
        f"{_UPDATE}test_advantages_are_normalised_over_the_steps_that_train_the_actor",
    ),
    _mutant(
        "floor_by_the_largest_head",
        "simic/agent/update.py",
        "head_sizes=torch.tensor(layout.sizes)",
        "head_sizes=torch.tensor([max(layout.sizes)] * layout.head_count)",
        f"{_UPDATE}test_the_adaptive_floor_of_a_head_is_by_its_own_choices",
    ),
    _mutant(
        "no_entropy_is_the_floor",
        "simic/agent/losses.py",
        "return torch.where(start > 0.0, torch.maximum(start - (start - floor) * progress, floor), 0.0)",
        "return torch.maximum(start - (start - floor) * progress, floor)",
        "simic/agent/test_entropy_and_values.py::test_a_coefficient_of_zero_is_no_bonus_whatever_the_floor",
    ),
    _mutant(
        "clipped_without_a_choice",
        "simic/agent/update_metrics.py",
        "clipped = ((ratio - 1.0).abs() > clip_ratio) & chosen",
        "clipped = (ratio - 1.0).abs() > clip_ratio",
        _RATIOS,
    ),
    _mutant(
        "clipped_from_above_only",
        "simic/agent/update_metrics.py",
        "((ratio - 1.0).abs() > clip_ratio)",
        "(ratio - 1.0 > clip_ratio)",
        _RATIOS,
    ),
    _mutant(
        "largest_ratio_of_the_last_minibatch",
        "simic/agent/update_metrics.py",
        'ratio_max=max((table["ratio_max"][n] for n in finite), default=None)',
        'ratio_max=last("ratio_max")',
        _RATIOS,
    ),
    _mutant(
        "shared_gradients_booked_to_a_head",
        "simic/agent/update_metrics.py",
        "heads.get(id(parameter), self.head_count)",
        "heads.get(id(parameter), 0)",
        f"{_METRICS}test_a_head_is_given_the_gradient_of_its_own_parameters_alone",
    ),
    # The rollout and its statistics
    _mutant(
        "reward_statistics_of_invalid_steps",
        "simic/agent/ppo.py",
        "self.reward_normalizer.update(reward, self._valid())",
        "self.reward_normalizer.update(reward)",
        f"{_PPO}test_invalid_steps_are_in_no_statistics",
    ),
    _mutant(
        "observation_statistics_of_invalid_steps",
        "simic/agent/ppo.py",
        "self.observation_stats.update(self._raw_observations.flatten(0, 1), self._valid().flatten())",
        "self.observation_stats.update(self._raw_observations.flatten(0, 1))",
        f"{_PPO}test_invalid_steps_are_in_no_statistics",
    ),
    _mutant(
        "bits_normalised",
        "simic/agent/normalization.py",
        "return torch.where(self.fixed, x, ((x - self.mean.float()) * scale).clamp_(-clip, clip))",
        "return ((x - self.mean.float()) * scale).clamp_(-clip, clip)",
        f"{_PPO}test_normalised_observations_keep_their_bits",
    ),
    *(
        _mutant(
            f"{feature}_normalised",
            "tamiyo/features.py",
            f'        "{feature}",\n        "{following}",\n',
            f'        "{following}",\n',
            "tamiyo/test_observation_layout.py::test_bits_shares_and_places_have_a_fixed_scale",
        )
        for feature, following in (("present", "fading"), ("offered", "time_left"), ("width", "depth"))
    ),
    _mutant(
        "rewards_clipped",
        "simic/agent/normalization.py",
        "return (rewards.to(torch.float64) / self.std).float()",
        "return (rewards.to(torch.float64) / self.std).float().clamp_(-10.0, 10.0)",
        "simic/agent/test_normalization_and_anomaly.py::test_rewards_are_scaled_neither_centred_nor_clipped",
    ),
    _mutant(
        "lost_episodes_as_true_ends",
        "simic/agent/rollout_buffer.py",
        "terminated = self.terminated.reshape(-1)[kept]",
        "terminated = (self.terminated | cut_short).reshape(-1)[kept]",
        f"{_PPO}test_an_end_in_an_invalid_step_does_not_join_two_episodes",
    ),
    _mutant(
        "lost_steps_trained_on",
        "simic/gymnasium_loop.py",
        "valid=~lost if lost.any() else None",
        "valid=None",
        "simic/test_lost_workers.py::"
        "test_what_was_seen_before_a_worker_died_bootstraps_and_the_others_do_not_notice",
    ),
    _mutant(
        "truncation_bootstraps_from_the_next_episode",
        "simic/gymnasium_loop.py",
        'final[env_idx] = info["final_obs"][env_idx]',
        "pass",
        f"{_LOOP}test_a_truncated_episode_bootstraps_from_the_state_it_was_stopped_in",
    ),
    # Evaluation
    _mutant(
        "memory_kept_between_evaluated_episodes",
        "simic/gymnasium_loop.py",
        "        actor.reset(torch.from_numpy(ended))\n",
        "",
        f"{_LOOP}test_evaluation_begins_every_episode_without_memory",
    ),
    _mutant(
        "memory_kept_between_judged_cases",
        "simic/evaluation.py",
        "        self._actor = self._make(num_envs)",
        "        if self._actor.num_envs != num_envs:\n            self._actor = self._make(num_envs)",
        "simic/test_evaluation.py::test_a_network_begins_every_episode_without_memory",
    ),
    _mutant(
        "no_reward_for_the_player",
        "simic/evaluation.py",
        "rewards = result.shown_rewards",
        "rewards = np.zeros(episodes.num_envs)",
        "simic/test_evaluation.py::test_a_player_is_shown_the_reward_of_its_last_step",
    ),
    _mutant(
        "no_reward_for_the_network",
        "simic/evaluation.py",
        "reward=torch.from_numpy(rewards).float()",
        "reward=torch.zeros(len(rewards))",
        "simic/test_evaluation.py::test_a_player_is_shown_the_reward_of_its_last_step",
    ),
    _mutant(
        "selection_by_training_hosts",
        "simic/building.py",
        "TRAINING_HOSTS + index",
        "index",
        "simic/env/test_pool.py::test_hosts_that_select_and_judge_are_never_trained_on",
    ),
    _mutant(
        "crashes_left_out_of_selection",
        "simic/env/episodes.py",
        "gain = self.accounts.gain_of_condemned(env_idx)",
        "pass",
        _CRASH,
    ),
    _mutant(
        "crash_worth_nothing_on_what_is_held_out",
        "simic/evaluation.py",
        "return [worst if episode.utility is None else episode.utility for episode in played]",
        "return [episode.utility or 0.0 for episode in played]",
        _CRASH,
    ),
    _mutant(
        "known_baselines_end_as_they_began",
        "benchmark/playing.py",
        "*row.validation_accuracies[-1:] * missing",
        "*row.validation_accuracies[:1] * missing",
        "benchmark/test_playing.py::test_waiting_is_the_control_curve",
    ),
    # Environments and rewards
    _mutant(
        "one_host_seed_for_all_cases",
        "simic/env/cases.py",
        "return (place * self.host_seeds + number) % TRAINING_HOSTS",
        "return number % TRAINING_HOSTS",
        "simic/env/test_pool.py::test_every_case_of_a_preset_trains_a_host_of_its_own",
    ),
    _mutant(
        "every_host_seed_before_the_next_case",
        "simic/env/cases.py",
        "        for number in range(self.host_seeds):\n            for place in places:\n",
        "        for place in places:\n            for number in range(self.host_seeds):\n",
        "simic/env/test_pool.py::test_every_pair_once",
    ),
    _mutant(
        "crash_costs_one_whatever_the_scores",
        "simic/reward.py",
        "-config.rollback_penalty * (best - worst)",
        "-config.rollback_penalty",
        "simic/rewards/test_lives.py::test_losing_the_host_does_not_pay_where_it_would_most",
    ),
    _mutant(
        "crash_spares_the_rent",
        "simic/reward.py",
        "np.where(lost, largest, rent)",
        "np.where(lost, 0.0, rent)",
        "simic/rewards/test_lives.py::test_losing_the_host_does_not_pay_where_it_would_most",
    ),
    _mutant(
        "actor_sees_the_baseline",
        "simic/env/episodes.py",
        "shown_rewards=self.accounts.shown.copy()",
        "shown_rewards=components.total",
        f"{_ACCOUNTS}test_nothing_that_the_actor_sees_depends_on_the_baseline",
    ),
    _mutant(
        "reward_by_the_observed_half",
        "simic/env/accounts.py",
        "(loss, accuracy), baseline = host.report.judged, self._baselines[env_idx]",
        "loss, accuracy = host.report.validation_loss, host.report.validation_accuracy\n"
        "        baseline = self._baselines[env_idx]",
        "simic/env/test_engine.py::test_waiting_earns_exactly_nothing",
    ),
    _mutant(
        "shown_the_judged_half",
        "simic/env/accounts.py",
        "score = report.validation_accuracy\n",
        "score = report.judged[1]\n",
        f"{_SHOWN}test_no_reward_that_is_shown_depends_on_the_judged_half",
    ),
    _mutant(
        "shown_by_the_judged_untrained_loss",
        "simic/env/accounts.py",
        "score_by_loss(report.validation_loss, self._untrained_observed_loss[env_idx])",
        "score_by_loss(report.validation_loss, self._untrained_loss[env_idx])",
        f"{_ACCOUNTS}test_a_loss_is_shown_over_the_observed_untrained_one_and_no_worse_than_the_worst",
    ),
    _mutant(
        "observed_accuracy_of_the_judged_half",
        "simic/env/episodes.py",
        "observed_accuracy=report.validation_accuracy if kept else None",
        "observed_accuracy=report.judged[1] if kept else None",
        f"{_SHOWN}test_a_finished_episode_reports_both_halves",
    ),
    _mutant(
        "shown_the_reward_of_the_task",
        "simic/held_out.py",
        "setting.episodes(reward=reward, shown_reward=shown)",
        "setting.episodes(reward=reward)",
        "cli/test_grow.py::test_a_controller_is_shown_the_reward_of_its_card",
    ),
    _mutant(
        "benchmarks_of_other_numerics_mixed",
        "benchmark/record.py",
        "if old.numerics != new.numerics:",
        "if False:",
        "benchmark/test_runner.py::test_rows_of_other_numerics_are_not_mixed",
    ),
    _mutant(
        "threads_not_in_the_name_of_a_curve",
        "tolaria/worlds/baselines.py",
        "parts.append(threads)",
        "pass",
        "tolaria/worlds/test_baselines.py::test_threads_are_in_the_name_where_they_are_in_the_numbers",
    ),
    # Hosts
    _mutant(
        "probed_at_full_alpha",
        "kasmina/coalitions.py",
        "return life.alpha_target",
        "return 1.0",
        "kasmina/test_coalitions.py::test_stacked_equal_separate",
    ),
    _mutant(
        "probed_at_full_alpha_in_the_toy",
        "tolaria/worlds/toy/host.py",
        "self._effect(slot, life.alpha_target)",
        "self._effect(slot, 1.0)",
        "tolaria/worlds/toy/test_world.py::test_a_seed_is_probed_at_its_own_target",
    ),
    _mutant(
        "best_of_condemned_epochs",
        "kasmina/governor.py",
        "        verdict = self._verdict(vitals)\n",
        "        verdict = self._verdict(vitals)\n"
        "        self.best_accuracy = max(self.best_accuracy, vitals.validation_accuracy or 0.0)\n",
        "kasmina/test_governor.py::test_the_best_is_that_of_good_epochs",
    ),
    _mutant(
        "crash_booked_as_a_lost_worker",
        "tolaria/worlds/engine.py",
        "        self._refuse(given_up)\n",
        "        self._refuse(self._given_up(steps))\n",
        "simic/env/test_engine.py::test_a_host_that_the_governor_gives_up_at_once_has_crashed_and_is_not_lost",
    ),
    _mutant(
        "snapshots_share_names_of_parameters",
        "kasmina/governor.py",
        "self._groups = [_own(group) for group in optimizer.param_groups]",
        "self._groups = [dict(group) for group in optimizer.param_groups]",
        "kasmina/test_rollback.py::test_names_of_parameters_come_back_with_them",
    ),
    _mutant(
        "weights_loaded_under_another_alpha",
        "kasmina/seed.py",
        "theirs is not None and float(theirs) != float(self.alpha)",
        "False",
        "kasmina/test_tree.py::test_a_state_at_another_alpha_is_refused",
    ),
    _mutant(
        "optimiser_keeps_the_seeds_that_left",
        "kasmina/persistence.py",
        "            model.care.forget(list(slot.seed.parameters()))\n",
        "            pass\n",
        "grower/test_best.py::test_the_best_epoch_may_be_one_before_growth",
    ),
    _mutant(
        "averages_do_not_grow_along",
        "grower/grower.py",
        "        self._averages.update()\n        decision = replace",
        "        decision = replace",
        "grower/test_best.py::test_an_average_that_follows_grows_along",
    ),
    _mutant(
        "samples_announced_before_they_are_met",
        "tolaria/engine/host.py",
        "return len(self.data.ranges[self._met_phase])",
        "return len(self._coming_samples)",
        "tolaria/engine/test_training.py::test_the_data_change_with_the_phase",
    ),
    _mutant(
        "settled_by_the_judged_half",
        "tolaria/engine/population.py",
        "return CoalitionScores(plans, loss, accuracy, judged_loss, judged_accuracy)",
        "return CoalitionScores(plans, judged_loss, judged_accuracy, loss, accuracy)",
        "tolaria/worlds/test_world.py::test_nothing_that_is_decided_by_depends_on_the_judged_half",
    ),
    # Networks and cloning
    _mutant(
        "previous_op_unseen",
        "tamiyo/growth_policy.py",
        'one_hot_or_zeros(previous["op"], self.layout.sizes[0])',
        'one_hot_or_zeros(previous["op"], self.layout.sizes[0]) * 0.0',
        _PREVIOUS,
    ),
    _mutant(
        "previous_slot_unseen",
        "tamiyo/growth_policy.py",
        "torch.cat((first, acted_on.unsqueeze(-1), rest), dim=-1)",
        "torch.cat((first, torch.zeros_like(acted_on).unsqueeze(-1), rest), dim=-1)",
        _PREVIOUS,
    ),
    _mutant(
        "previous_blueprint_unseen",
        "tamiyo/growth_policy.py",
        'planted = one_hot_or_zeros(previous["blueprint"], blueprints.shape[2])',
        'planted = one_hot_or_zeros(previous["slot"] * 0, blueprints.shape[2])',
        _PREVIOUS,
    ),
    _mutant(
        "previous_ways_unseen",
        "tamiyo/growth_policy.py",
        "choices.index_select(-1, way_heads).eq(way_choices).float()",
        "choices.index_select(-1, way_heads).eq(way_choices).float() * 0.0",
        _PREVIOUS,
    ),
    _mutant(
        "gate_not_in_the_budget",
        "tamiyo/masks.py",
        "at_birth = np.where(gate_fits, _EVERY, _NO_GATE)",
        "at_birth = np.where(gate_fits, _EVERY, _EVERY)",
        "tamiyo/test_deciders.py::test_a_gate_counts_in_the_budget",
    ),
    _mutant(
        "gate_not_in_the_budget_of_rules",
        "tamiyo/masks.py",
        "elif max(costs.values()) + gates[slot] > room:",
        "elif max(costs.values()) > room:",
        "tamiyo/test_deciders.py::test_a_gate_counts_in_the_budget",
    ),
    _mutant(
        "loss_of_a_clone_over_forced_steps",
        "simic/cloning.py",
        "        free = ~evaluation.forced\n        steps = int(free.sum())",
        "        free = torch.ones_like(evaluation.forced)\n        steps = int(free.sum())",
        "simic/cloning/test_cloning.py::test_steps_without_a_choice_are_neither_taught_nor_counted",
    ),
    _mutant(
        "agreement_on_forced_steps",
        "simic/cloning.py",
        "        free = ~evaluation.forced\n        if not",
        "        free = torch.ones_like(evaluation.forced)\n        if not",
        "simic/cloning/test_cloning.py::test_steps_without_a_choice_are_neither_taught_nor_counted",
    ),
    # Going on with a run
    _mutant(
        "checksums_of_a_checkpoint_not_looked_at",
        "simic/agent/checkpoint.py",
        "content = _sound_copy(path)",
        "content = io.BytesIO(path.read_bytes())",
        "simic/agent/test_checkpoint.py::test_overwritten_bytes_are_found_wherever_they_are",
    ),
    _mutant(
        "first_sound_checkpoint_instead_of_the_newest",
        "runs/resuming.py",
        'newest = max(sound, key=lambda path: sound[path]["extra"]["round"], default=None)',
        "newest = next(iter(sound), None)",
        "runs/test_resuming.py::test_the_newest_is_the_one_of_the_latest_round_whatever_the_clock_says",
    ),
    _mutant(
        "any_setting_may_change",
        "simic/config/training_config.py",
        '        if refused:\n            raise ConfigError(\n                f"a run goes on',
        '        if refused and not same:\n            raise ConfigError(\n                f"a run goes on',
        "runs/test_resuming.py::test_a_resume_under_other_settings_is_refused_with_all_that_differs",
    ),
    # What a Grower chooses by itself
    _mutant(
        "margin_without_noise",
        "tamiyo/rules/by_layout.py",
        "margin = self.noise_margin * noise_of(self.memory.scores)",
        "margin = 0.0",
        f"{_BY_LAYOUT}test_what_exceeds_the_noise_of_validation_is_kept_or_pruned_at_its_age",
    ),
    _mutant(
        "trials_at_any_learning_rate",
        "tamiyo/rules/by_layout.py",
        "return soon_enough and (share is None or share >= self.least_rate)",
        "return soon_enough",
        f"{_BY_LAYOUT}test_nothing_begins_when_the_learning_rate_has_fallen",
    ),
    _mutant(
        "frozen_by_share_alone",
        "grower/choosing.py",
        "return all(modules.index(owner) > last for owner in owners)",
        "return True",
        "grower/test_choosing.py::test_what_counts_as_frozen",
    ),
    _mutant(
        "highest_rate_forgotten",
        "grower/host.py",
        "highest = max(rate, self.report.highest_learning_rate or 0.0)",
        "highest = rate",
        "grower/test_choosing.py::test_the_learning_rate_is_shown_as_a_share_of_its_highest",
    ),
    _mutant(
        "budget_not_shared",
        "tamiyo/rules/frozen_spread.py",
        "(budget - situation.signals.added_parameters) / max(len(slots), 1)",
        "(budget - situation.signals.added_parameters)",
        "tamiyo/rules/test_frozen_spread.py::test_a_budget_is_divided_evenly_and_spent_on_the_largest_kind_that_fits",
    ),
    # Several processes
    _mutant(
        "gradients_of_seeds_summed_over_processes",
        "kasmina/replicas.py",
        "torch.cat((*gradients, present, *flags)).div_(self.size)",
        "torch.cat((*gradients, present, *flags))",
        f"{_PROCESSES}test_processes_are_equal_and_equal_to_one[ddp-1-18]",
    ),
    _mutant(
        "each_process_its_own_seed",
        "kasmina/replicas.py",
        "        self._spread((*seed.parameters(), *seed.buffers()))\n        self._notice",
        "        self._notice",
        f"{_PROCESSES}test_rank_0_decides_and_its_seeds_are_everybodys",
    ),
    _mutant(
        "a_broken_seed_skipped_in_one_process",
        "kasmina/replicas.py",
        "            mark.logical_or_(found > 0.0)\n",
        "            del mark, found\n",
        f"{_PROCESSES}test_a_seed_that_breaks_in_one_process_is_not_updated_in_any[ddp]",
    ),
    _mutant(
        "drift_between_processes_unseen",
        "kasmina/replicas.py",
        "        self._refuse_drift()\n",
        "",
        f"{_PROCESSES}test_drift_is_an_error_that_names_the_parameter",
    ),
    _mutant(
        "a_metric_of_one_share",
        "grower/validating.py",
        "            tally.share(model.replicas)\n",
        "            pass\n",
        f"{_PROCESSES}test_a_metric_sees_the_shares_of_all",
    ),
)
